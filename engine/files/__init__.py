"""Files in directories and object stores: COPY from them, and tables over them."""
