"""What runs inside the sandbox: imported by path in a bare interpreter (`python -I -S`), so standard library only."""
