"""Where calls run: the seam (`base`), and one room for each kind of engine."""
