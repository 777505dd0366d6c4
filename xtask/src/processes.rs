//! Processes by their parents.

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

pub(crate) fn process_and_descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name before it may contain spaces and brackets.
        let parent = status.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut from = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = from.pop() {
        for &child in children.get(&parent).into_iter().flatten() {
            found.extend(Pid::from_raw(child));
            from.push(child);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_process_and_its_descendants_are_found() {
        let mut child = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let is_found = || process_and_descendants(Pid::from_child(&child)).len() == 1;
        while !is_found() {
            thread::sleep(Duration::from_millis(5));
        }
        let all = process_and_descendants(rustix::process::getpid());
        assert!(all.contains(&Pid::from_child(&child)));
        for process in process_and_descendants(Pid::from_child(&child)) {
            kill_process(process, Signal::KILL).unwrap();
        }
        assert!(child.wait().is_ok());
    }
}
