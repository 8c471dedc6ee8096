"""The rules of a front: it hands runs of lanes to clients that ask for messages and acknowledge them one by one."""
