"""Requests, each answered before the next, by pyzmq, REQ to REP."""
import zmq

client = zmq.Context().socket(zmq.REQ)
client.linger = 0
client.connect(f"tcp://{task['at']}:{task['port']}")
message, total = bytes(task["bytes"]), 0
counters[READY] = 1
while not counters[STOP]:
    client.send(message)
    client.recv()
    total += 1
    counters[PACKETS] = total
