"""Programs whose engines are killed, or hang, while they run."""
