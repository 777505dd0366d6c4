"""Sends messages by pyzmq, PUSH to PULL."""
import zmq

sender = zmq.Context().socket(zmq.PUSH)
sender.sndtimeo = 10
sender.linger = 0
sender.connect(f"tcp://{task['at']}:{task['port']}")
message, total = bytes(task["bytes"]), 0
counters[READY] = 1
while not counters[STOP]:
    try:
        for _ in range(64):
            sender.send(message)
            total += 1
    except zmq.Again:
        pass
    counters[PACKETS] = total
