"""The main job: order life cycles through broker, consumers and a Spark pipeline, some of which are killed.

Every part is a process of its own. At the end the table is compared row by row with the expected result, and the
checker reads the histories of all processes.

    python -m lanemq.testing.demo --orders 8000 --folder var/demo
"""
