"""Heaps into chunks, by spead2's ChunkRingStream; its callback is compiled, as its documentation demands."""
import ctypes
import os
import select
import socket
import subprocess
import tempfile

import numpy
import spead2
import spead2.recv

PLACE = """
#include <stddef.h>
#include <stdint.h>
struct placement {
    const uint8_t *packet;
    size_t packet_bytes;
    const int64_t *items;
    int64_t chunk;
    size_t presence_index, offset;
    uint64_t *statistics;
    uint8_t *extra;
    size_t extra_offset, extra_bytes;
};
void place(void *data, size_t bytes) {
    struct placement *placement = data;
    const int64_t heap = placement->items[0];
    (void) bytes;
    placement->chunk = heap / HEAPS;
    placement->presence_index = heap % HEAPS * HEAP_ROWS;
    placement->offset = heap % HEAPS * HEAP_ROWS * PAYLOAD_BYTES;
}
"""
SIGNATURE = b"void (void *, size_t)"
SO_RCVBUFFORCE = 33


def compiled_callback():
    """The callback, as spead2 takes it: a capsule, and what keeps it alive."""
    values = {name: task[name.lower()] for name in ("HEAPS", "HEAP_ROWS", "PAYLOAD_BYTES")}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "place.so")
        command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
        command[1:1] = [f"-D{name}={value}" for name, value in values.items()]
        subprocess.run(command, input=PLACE.encode(), check=True)
        library = ctypes.CDLL(path)
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new_capsule(ctypes.cast(library.place, ctypes.c_void_p), SIGNATURE, None), library, SIGNATURE


rows = task["heaps"] * task["heap_rows"]
chunk_config = spead2.recv.ChunkStreamConfig(
    items=[spead2.HEAP_CNT_ID], max_chunks=2, place=compiled_callback()
)
chunk_config.enable_packet_presence(task["payload_bytes"])
full, free = (spead2.recv.ChunkRingbuffer(task["ring"]) for _ in range(2))
stream = spead2.recv.ChunkRingStream(
    spead2.ThreadPool(), spead2.recv.StreamConfig(max_heaps=2 * task["heaps"]), chunk_config, full, free
)
for _ in range(task["ring"]):
    data, present = numpy.zeros(rows * task["payload_bytes"], "u1"), numpy.zeros(rows, "u1")
    stream.add_free_chunk(spead2.recv.Chunk(data=data, present=present))

receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, task["receive_buffer"])
receiver.bind((task["at"], task["port"]))
stream.add_udp_reader(receiver, max_size=task["header_bytes"] + task["payload_bytes"])
ready = select.poll()
ready.register(full.data_fd, select.POLLIN)
total = 0
counters[READY] = 1
while not counters[STOP]:
    if ready.poll(10):
        chunk = full.get()
        total += numpy.count_nonzero(chunk.present)
        counters[PACKETS] = total
        stream.add_free_chunk(chunk)
stream.stop()
