"""Programs that clients run here, and programs of clients whose calls alone come here."""
