"""The main job: order life cycles through broker, consumers and a Spark pipeline, with parts of it killed on the way.

Every part runs in a process of its own. At the end the table is compared with the generator's truth, row by row, and
the independent checker reads the histories of everybody who took part; what is shown comes from those two.

    python -m lanemq.testing.demo --orders 8000 --folder var/demo
"""
