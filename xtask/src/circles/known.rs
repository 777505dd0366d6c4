//! The circles that are known, each with the issue that opens it. The list only shrinks.

use std::collections::BTreeSet;

use super::Circle;

/// A circle that stays until an issue opens it.
#[derive(Debug)]
pub(super) struct KnownImportCircle {
    pub(super) issue: &'static str,
    /// The directory of the crate.
    pub(super) directory: &'static str,
    /// The files below `src`, with spaces between them.
    pub(super) files: &'static str,
}

const ROAD: &str = "One road for a message";

const fn circle_of_nocopy(issue: &'static str, files: &'static str) -> KnownImportCircle {
    KnownImportCircle { issue, directory: "crates/nocopy", files }
}

const fn circle_of_proto(issue: &'static str, files: &'static str) -> KnownImportCircle {
    KnownImportCircle { issue, directory: "crates/nocopy-proto", files }
}

pub(super) const ALL: &[KnownImportCircle] = &[
    circle_of_nocopy(
        ROAD,
        "message/arrivals.rs message/carrier/mod.rs message/descriptor.rs message/endpoint.rs \
         message/open_packet.rs message/payload.rs message/placing/posted.rs \
         message/placing/puts.rs message/placing/regions.rs message/received.rs message/streams/memory.rs \
         message/streams/mod.rs",
    ),
    circle_of_nocopy(ROAD, "message/by_stream.rs message/sending.rs"),
    circle_of_nocopy(ROAD, "message/streams/placed.rs message/streams/reading.rs"),
    circle_of_proto(ROAD, "message/framing.rs message/placing.rs message/settings.rs"),
    circle_of_proto(
        ROAD,
        "message/simulation/conversation.rs message/simulation/host.rs message/simulation/puts.rs \
         message/simulation/streams.rs",
    ),
];

impl KnownImportCircle {
    fn file_set(&self) -> BTreeSet<&str> {
        self.files.split_whitespace().collect()
    }
}

/// Compares the circles found, each with the directory of its crate, with the known ones. Errors: a circle
/// that is not known, or a known one that is smaller now, or gone.
pub(super) fn compare_with_known(
    found: &[(String, Circle)],
    known: &[KnownImportCircle],
) -> Result<(), String> {
    let complaints = [
        (
            "these files import each other in a circle; move what they share below them",
            found
                .iter()
                .flat_map(|(directory, circle)| unknown_circle_complaint(directory, circle, known))
                .collect::<Vec<_>>(),
        ),
        (
            "these circles are no longer what the list says; shorten it (xtask/src/circles/known.rs)",
            known.iter().filter_map(|known| smaller_circle_complaint(known, found)).collect(),
        ),
    ];
    let complaints: Vec<String> = complaints
        .iter()
        .filter(|(_, circles)| !circles.is_empty())
        .map(|(complaint, circles)| format!("{complaint}:\n{}", circles.join("\n")))
        .collect();
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

/// The circles that are not within a known one.
fn unknown_circle_complaint(directory: &str, circle: &Circle, known: &[KnownImportCircle]) -> Vec<String> {
    let known: Vec<_> =
        known.iter().filter(|known| known.directory == directory).map(KnownImportCircle::file_set).collect();
    let files: Vec<&str> = circle.keys().map(String::as_str).collect();
    if is_within(&files, &known) {
        return Vec::new();
    }
    let mut new = distinct_shortest_circles(circle);
    new.retain(|files| !is_within(files, &known));
    if new.is_empty() {
        // Known circles have become one, and each file has a shorter circle among its own.
        return vec![format!("{directory}: {}", files.join(", "))];
    }
    new.iter().map(|files| format!("{directory}: {}", files.join(" → "))).collect()
}

fn is_within(files: &[impl AsRef<str>], known: &[BTreeSet<&str>]) -> bool {
    known.iter().any(|known| files.iter().all(|file| known.contains(file.as_ref())))
}

/// What is left of a known circle that is smaller now.
fn smaller_circle_complaint(known: &KnownImportCircle, found: &[(String, Circle)]) -> Option<String> {
    let files = known.file_set();
    let mut left = Vec::new();
    for (_, circle) in found.iter().filter(|(directory, _)| directory == known.directory) {
        let both: Vec<&str> = circle.keys().map(String::as_str).filter(|file| files.contains(file)).collect();
        if both.len() == files.len() {
            return None;
        }
        left.push(both);
    }
    left.retain(|circle| !circle.is_empty());
    let left: Vec<String> = left.iter().map(|files| format!("'{}'", files.join(" "))).collect();
    let left = if left.is_empty() { "nothing".to_owned() } else { left.join(" and ") };
    Some(format!("{} ({}): of '{}' {left} is left", known.directory, known.issue, known.files))
}

/// The shortest circles through the files of a circle, each once.
pub(super) fn distinct_shortest_circles(circle: &Circle) -> Vec<&[String]> {
    let mut seen = BTreeSet::new();
    let mut shortest: Vec<_> = circle.values().map(Vec::as_slice).collect();
    shortest.retain(|files| seen.insert(files.iter().collect::<BTreeSet<_>>()));
    shortest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::CrateSources;

    const KNOWN: &[KnownImportCircle] = &[
        KnownImportCircle { issue: "An issue", directory: "crates/one", files: "a.rs b.rs" },
        KnownImportCircle { issue: "Another issue", directory: "crates/one", files: "c.rs d.rs" },
    ];

    /// Compares a crate of files 'a' to 'e', of which each uses some.
    fn compare_example(uses: [&str; 5]) -> String {
        let names = ["a", "b", "c", "d", "e"];
        let text = |used: &str| used.chars().map(|used| format!("use crate::{used}::of_{used};\n")).collect();
        let texts: Vec<(String, String)> =
            names.iter().zip(uses).map(|(name, used)| (format!("{name}.rs"), text(used))).collect();
        let circles = CrateSources::from_texts(&texts).import_circles();
        let found: Vec<_> = circles.into_iter().map(|circle| ("crates/one".to_owned(), circle)).collect();
        compare_with_known(&found, KNOWN).err().unwrap_or_default()
    }

    #[test]
    fn known_circles_are_accepted() {
        assert_eq!(compare_example(["b", "a", "d", "ce", ""]), "");
    }

    #[test]
    fn a_new_circle_is_refused() {
        let refused = compare_example(["b", "a", "d", "ce", "d"]);
        assert!(refused.ends_with("below them:\ncrates/one: e.rs → d.rs → e.rs"), "{refused}");
        assert!(compare_example(["b", "a", "d", "e", "c"]).contains("crates/one: c.rs → d.rs → e.rs → c.rs"));
    }

    #[test]
    fn known_circles_that_become_one_are_refused() {
        assert!(compare_example(["bc", "a", "d", "cb", ""]).contains("crates/one: a.rs, b.rs, c.rs, d.rs"));
    }

    #[test]
    fn a_listed_circle_that_no_longer_exists_is_refused() {
        let refused = compare_example(["b", "", "d", "c", ""]);
        let expected = "known.rs):\ncrates/one (An issue): of 'a.rs b.rs' nothing is left";
        assert!(refused.ends_with(expected), "{refused}");
    }

    #[test]
    fn a_smaller_circle_is_listed_by_its_remainder() {
        let known = KnownImportCircle {
            issue: "An issue",
            directory: "crates/one",
            files: "a.rs b.rs c.rs d.rs e.rs",
        };
        let circle = |files: &[&str]| files.iter().map(|file| ((*file).to_owned(), Vec::new())).collect();
        let found = |circles: &[&[&str]]| {
            circles.iter().map(|files| ("crates/one".to_owned(), circle(files))).collect::<Vec<_>>()
        };
        let all = found(&[&["a.rs", "b.rs", "c.rs", "d.rs", "e.rs", "f.rs"]]);
        assert_eq!(smaller_circle_complaint(&known, &all), None);
        let two = smaller_circle_complaint(&known, &found(&[&["a.rs", "b.rs"], &["c.rs", "d.rs"]])).unwrap();
        assert!(two.ends_with("'a.rs b.rs' and 'c.rs d.rs' is left"), "{two}");
    }

    #[test]
    fn each_file_is_in_one_known_circle() {
        let mut seen = BTreeSet::new();
        for known in ALL {
            for file in known.file_set() {
                assert!(seen.insert((known.directory, file)), "{file}");
            }
        }
    }
}
