"""Receives messages by pyzmq, PUSH to PULL."""
import zmq

receiver = zmq.Context().socket(zmq.PULL)
receiver.rcvtimeo = 10
receiver.bind(f"tcp://{task['at']}:{task['port']}")
total = 0
counters[READY] = 1
while not counters[STOP]:
    try:
        for _ in range(64):
            receiver.recv()
            total += 1
    except zmq.Again:
        pass
    counters[PACKETS] = total
