"""The broker process: name server and broker behind one port."""
