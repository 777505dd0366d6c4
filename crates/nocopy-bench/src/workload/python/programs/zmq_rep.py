"""Answers requests by pyzmq, REQ to REP."""
import zmq

server = zmq.Context().socket(zmq.REP)
server.rcvtimeo = 10
server.bind(f"tcp://{task['at']}:{task['port']}")
total = 0
counters[READY] = 1
while not counters[STOP]:
    try:
        server.send(server.recv())
    except zmq.Again:
        continue
    total += 1
    counters[PACKETS] = total
