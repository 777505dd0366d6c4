//! The monitor of the machine's emulator, reached from inside over a serial port (see `host::machine`): it
//! can do to a card what only a hand at the cable could.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::failure::Failure;

/// The serial port's name, given by the host.
pub(crate) const PORT: &str = "nocopy.monitor";

/// A connection to the emulator, in its machine protocol: one JSON value a line.
pub(crate) struct EmulatorMonitor {
    port: BufReader<File>,
}

impl EmulatorMonitor {
    pub(crate) fn open() -> Result<Self, Failure> {
        let port = OpenOptions::new().read(true).write(true).open(device_of_port(PORT)?)?;
        let mut monitor = Self { port: BufReader::new(port) };
        // Refused if an earlier test has done it: the emulator's end of the line stays open.
        let _ = monitor.execute_command(&json!({ "execute": "qmp_capabilities" }));
        Ok(monitor)
    }

    /// Unplugs the cable of a card, or plugs it in again. Card 0 is the left end.
    pub(crate) fn set_cable_plugged(&mut self, card: u32, plugged: bool) -> Result<(), Failure> {
        let arguments = json!({ "name": format!("card{card}"), "up": plugged });
        self.execute_command(&json!({ "execute": "set_link", "arguments": arguments }))
    }

    fn execute_command(&mut self, command: &Value) -> Result<(), Failure> {
        self.port.get_mut().write_all(format!("{command}\n").as_bytes())?;
        let mut line = String::new();
        while self.port.read_line(&mut line)? > 0 {
            let answer: Value = serde_json::from_str(&line)?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                return Err(Failure(format!("the emulator refused {command}: {error}")));
            }
            line.clear(); // an event without a request
        }
        Err(Failure(format!("the emulator did not answer {command}")))
    }
}

/// The device file of a serial port that the emulator gave a name.
pub(crate) fn device_of_port(port: &str) -> Result<String, Failure> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim_end() == port) {
            return Ok(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    Err(Failure(format!("the machine has no serial port '{port}'")))
}
