//! The card that `nocopy bench --pair` measured: a line of its JSON, and the first rows of its table.

use crate::headline::{headline_lines, table_of_headline};
use crate::headline_table::HEADER;
use crate::result::{Card, Report};
use crate::table::Table;

/// The card, and the headline measured with it; `None`: it was another kind of run.
pub fn card_table(report: &Report) -> Option<Table> {
    let card = report.card.as_ref()?;
    let headline = table_of_headline(&headline_lines(report));
    let facts = card_facts(report, card).into_iter().map(|(name, value)| {
        let mut row = vec![name.to_owned(), value];
        row.resize(HEADER.len(), String::new());
        row
    });
    Some(Table::new(&HEADER, 0..0, facts.chain(headline.rows).collect()))
}

fn card_facts(report: &Report, card: &Card) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    let date = report.measured_at.split('T').next().unwrap_or_default();
    let shared = if machine.virtual_machine { " (a virtual machine)" } else { "" };
    let processor = machine.processor.as_deref().unwrap_or("unknown processor");
    let speed = card.speed_mbit.map(|mbit| format!("{} Gbit/s", f64::from(mbit) / 1000.0));
    let reached: Vec<_> =
        card.modes.iter().filter(|mode| mode.refused.is_none()).map(|mode| &*mode.mode).collect();
    let unknown = || "not reported".to_owned();
    let mut facts = vec![
        ("date", date.to_owned()),
        ("command", report.command.clone()),
        ("nocopy", machine.nocopy_version.clone()),
        ("kernel", format!("Linux {}, {}", machine.kernel, machine.architecture)),
        ("processor", format!("{} × {processor}{shared}", machine.processors)),
        ("driver", card.driver.clone()),
        ("firmware", card.firmware.clone().unwrap_or_else(unknown)),
        ("speed", speed.unwrap_or_else(unknown)),
        ("receive queues", card.queues.to_string()),
        ("modes", reached.join(", ")),
    ];
    facts.extend(card.modes.iter().filter_map(|mode| Some(("refused", mode.refused.clone()?))));
    facts.extend(report.notes.iter().map(|note| ("not measured", note.clone())));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::CardMode;
    use crate::sample;

    #[test]
    fn a_table_has_the_card_and_then_the_headline() {
        let mode = |mode: &str, refused: Option<&str>| CardMode {
            mode: mode.into(),
            refused: refused.map(str::to_owned),
        };
        let card = Card {
            driver: "igb".into(),
            firmware: None,
            speed_mbit: Some(2500),
            queues: 8,
            modes: vec![
                mode("xdp zero-copy", Some("xdp zero-copy: not available")),
                mode("packet ring", None),
            ],
        };
        let report = Report { card: Some(card), ..sample::full_run() };
        let table = card_table(&report).unwrap();
        let value = |name: &str| table.rows.iter().find(|row| row[0] == name).map(|row| row[1].as_str());
        assert_eq!(value("speed"), Some("2.5 Gbit/s"));
        assert_eq!(value("firmware"), Some("not reported"));
        assert_eq!(value("modes"), Some("packet ring"));
        assert_eq!(value("refused"), Some("xdp zero-copy: not available"));
        let facts = table.rows.iter().position(|row| row[0] == "UDP send, 64 B").unwrap();
        assert_eq!(table.rows.len() - facts, headline_lines(&report).len());
        assert!(table.rows.iter().all(|row| row.len() == HEADER.len()));
        assert!(card_table(&sample::full_run()).is_none());
    }
}
