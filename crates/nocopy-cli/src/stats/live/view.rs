//! Which lines are shown, in which order, and how; keys change it.

use std::cmp::Ordering;

use super::terminal::{Emphasis, StyledLine};
use crate::stats::export::table;
use crate::stats::line::{CounterLine, LineSubject, Quantity, interface_lines};
use crate::stats::report::InterfaceReport;
use nocopy_report::quantity::short_number;
use nocopy_report::table::Table;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyCommand {
    NextColumn,
    Reverse,
    All,
    Quit,
}

impl KeyCommand {
    pub(super) fn from_byte(typed: u8) -> Option<Self> {
        match typed {
            b's' => Some(Self::NextColumn),
            b'r' => Some(Self::Reverse),
            b'a' => Some(Self::All),
            b'q' => Some(Self::Quit),
            _ => None,
        }
    }
}

const KEYS: &str = "s next column   r reverse   a all or active   q quit";
const NO_KEYS: &str = "Ctrl-C quits";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortColumn {
    /// The following variants are parts of the first column.
    Interface,
    PerSecond(Quantity),
    Total(Quantity),
}

/// In the order of the table, where the subject is a second column.
const COLUMNS: [(SortColumn, &str); 7] = [
    (SortColumn::Interface, "interface"),
    (SortColumn::PerSecond(Quantity::RxPackets), "rx packets/s"),
    (SortColumn::PerSecond(Quantity::RxBytes), "rx bytes/s"),
    (SortColumn::PerSecond(Quantity::TxPackets), "tx packets/s"),
    (SortColumn::PerSecond(Quantity::TxBytes), "tx bytes/s"),
    (SortColumn::PerSecond(Quantity::Drops), "drops/s"),
    (SortColumn::Total(Quantity::Drops), "drops"),
];

impl SortColumn {
    /// `None` if a line has no such figure.
    fn sort_value(self, line: &CounterLine) -> Option<f64> {
        match self {
            Self::Interface => None,
            Self::PerSecond(quantity) => line.amount(quantity)?.per_second,
            Self::Total(quantity) => Some(line.amount(quantity)?.total as f64),
        }
    }

    fn compare_lines(self, a: &CounterLine, b: &CounterLine, is_reversed: bool) -> Ordering {
        let direct = |ordering: Ordering| if is_reversed { ordering.reverse() } else { ordering };
        let by_name = || (&a.interface, &a.subject).cmp(&(&b.interface, &b.subject));
        match (self, self.sort_value(a), self.sort_value(b)) {
            (Self::Interface, ..) => direct(by_name()),
            // The largest first.
            (_, Some(a), Some(b)) => direct(b.total_cmp(&a)).then_with(by_name),
            // Lines without a value are last, in either order.
            (_, a, b) => b.is_some().cmp(&a.is_some()).then_with(by_name),
        }
    }
}

#[derive(Debug)]
pub(super) struct TableView {
    /// The place of the column that lines are sorted by.
    sorted_by: usize,
    is_reversed: bool,
    /// Whether lines are shown whose counters are all 0.
    all: bool,
    /// All counters of the one interface by name, shown below the table.
    has_counters: bool,
    hint: &'static str,
}

impl TableView {
    pub(super) fn new(all: bool, has_counters: bool, has_keys: bool) -> Self {
        let hint = if has_keys { KEYS } else { NO_KEYS };
        Self { sorted_by: 0, is_reversed: false, all, has_counters, hint }
    }

    pub(super) fn apply_key(&mut self, key: KeyCommand) {
        match key {
            KeyCommand::NextColumn => {
                self.sorted_by = (self.sorted_by + 1) % COLUMNS.len();
                self.is_reversed = false;
            }
            KeyCommand::Reverse => self.is_reversed = !self.is_reversed,
            KeyCommand::All => self.all = !self.all,
            KeyCommand::Quit => {}
        }
    }

    pub(super) fn styled_lines(&self, reports: &[InterfaceReport]) -> Vec<StyledLine> {
        let sorted = self.sorted_lines(reports);
        let header = (self.hint.to_owned(), Emphasis::None);
        let emphasis = sorted.iter().map(|line| match line.is_dropping() {
            true => Emphasis::Alarm,
            false => Emphasis::None,
        });
        let text = self.rate_table(&sorted).text();
        let rows = text.lines().map(str::to_owned).zip(std::iter::once(Emphasis::Header).chain(emphasis));
        let counters = reports.iter().filter(|_| self.has_counters);
        let counters: String =
            counters.map(|report| format!("\n{}", table::counter_table_text(report, self.all))).collect();
        let counters = counters.lines().map(|line| (line.to_owned(), Emphasis::None));
        let all = std::iter::once(header).chain(rows).chain(counters);
        all.map(|(text, emphasis)| StyledLine { text, emphasis }).collect()
    }

    fn sorted_lines(&self, reports: &[InterfaceReport]) -> Vec<CounterLine> {
        let shown = |line: &CounterLine| {
            self.all || line.is_active() || (self.has_counters && line.subject == LineSubject::Interface)
        };
        let mut sorted: Vec<CounterLine> = reports.iter().flat_map(interface_lines).filter(shown).collect();
        let (column, _) = COLUMNS[self.sorted_by];
        sorted.sort_by(|a, b| column.compare_lines(a, b, self.is_reversed));
        sorted
    }

    fn rate_table(&self, lines: &[CounterLine]) -> Table {
        let mark = |at| match (at == self.sorted_by, self.is_reversed) {
            (false, _) => "",
            (true, false) => " ▼",
            (true, true) => " ▲",
        };
        let names = COLUMNS.iter().enumerate().map(|(at, (_, name))| format!("{name}{}", mark(at)));
        let mut header: Vec<String> = names.collect();
        header.insert(1, String::new());
        let rows = lines.iter().map(|line| {
            let subject = match &line.subject {
                LineSubject::Interface => String::new(),
                LineSubject::Queue(number) => format!("queue {number}"),
                LineSubject::Socket(_, _, name) => name.clone(),
            };
            let figure = |column: SortColumn| column.sort_value(line).map(short_number).unwrap_or_default();
            let figures = COLUMNS[1..].iter().map(|(column, _)| figure(*column));
            [line.interface.clone(), subject].into_iter().chain(figures).collect()
        });
        Table { figures: 2..header.len(), rows: rows.collect(), header }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::line::tests::{counter_group, report_with_groups};
    use crate::stats::report::CounterSource;

    fn link_counter_group(packets: u64, drops: u64) -> crate::stats::report::CounterGroup {
        counter_group(CounterSource::Link, &[("rx_packets", packets, packets), ("rx_dropped", drops, drops)])
    }

    /// Three interfaces, one of them idle, and a queue that counts no drops.
    fn example_reports() -> [InterfaceReport; 3] {
        let queue = counter_group(CounterSource::Queue("rx".into(), 0), &[("rx_packets", 10, 10)]);
        [
            report_with_groups("eth1", vec![link_counter_group(40, 0)]),
            report_with_groups("idle", vec![link_counter_group(0, 0)]),
            report_with_groups("eth0", vec![link_counter_group(10, 6), queue]),
        ]
    }

    fn view_sorted_by_name() -> TableView {
        TableView::new(false, false, true)
    }

    fn names_in_order(view: &TableView) -> Vec<String> {
        let names = view.sorted_lines(&example_reports()).into_iter().map(|line| match line.subject {
            LineSubject::Interface => line.interface,
            subject => format!("{} {subject:?}", line.interface),
        });
        names.collect()
    }

    #[test]
    fn lines_are_sorted_by_name_first_and_then_by_the_next_column() {
        let mut view = view_sorted_by_name();
        assert_eq!(names_in_order(&view), ["eth0", "eth0 Queue(0)", "eth1"]);
        view.apply_key(KeyCommand::NextColumn);
        assert_eq!(names_in_order(&view), ["eth1", "eth0", "eth0 Queue(0)"], "the most packets first");
        COLUMNS[2..].iter().for_each(|_| view.apply_key(KeyCommand::NextColumn));
        assert_eq!(COLUMNS[view.sorted_by].1, "drops");
        assert_eq!(names_in_order(&view)[0], "eth0");
        view.apply_key(KeyCommand::NextColumn);
        assert_eq!(names_in_order(&view)[0], "eth0", "behind the last column comes the first");
        assert_eq!(view.sorted_by, 0);
    }

    #[test]
    fn reverse_order_keeps_lines_without_a_value_last() {
        let mut view = view_sorted_by_name();
        view.apply_key(KeyCommand::Reverse);
        assert_eq!(names_in_order(&view), ["eth1", "eth0 Queue(0)", "eth0"]);
        (0..5).for_each(|_| view.apply_key(KeyCommand::NextColumn));
        assert_eq!(COLUMNS[view.sorted_by].1, "drops/s");
        assert_eq!(
            names_in_order(&view),
            ["eth0", "eth1", "eth0 Queue(0)"],
            "a new column begins with the most"
        );
        view.apply_key(KeyCommand::Reverse);
        assert_eq!(names_in_order(&view), ["eth1", "eth0", "eth0 Queue(0)"]);
    }

    #[test]
    fn idle_lines_are_shown_on_request() {
        let mut view = view_sorted_by_name();
        assert!(!names_in_order(&view).contains(&"idle".to_owned()));
        view.apply_key(KeyCommand::All);
        assert!(names_in_order(&view).contains(&"idle".to_owned()));
        view.apply_key(KeyCommand::All);
        assert!(!names_in_order(&view).contains(&"idle".to_owned()));
    }

    #[test]
    fn a_named_idle_interface_is_shown() {
        let idle = [report_with_groups("idle", vec![link_counter_group(0, 0)])];
        assert_eq!(TableView::new(false, true, true).sorted_lines(&idle).len(), 1);
        assert_eq!(view_sorted_by_name().sorted_lines(&idle).len(), 0);
    }

    #[test]
    fn only_four_keys_have_a_function() {
        let keys: Vec<u8> = (0..=255).filter(|&typed| KeyCommand::from_byte(typed).is_some()).collect();
        assert_eq!(keys, b"aqrs");
        assert_eq!(
            (KeyCommand::from_byte(b's'), KeyCommand::from_byte(b'q')),
            (Some(KeyCommand::NextColumn), Some(KeyCommand::Quit))
        );
        assert_eq!(
            (KeyCommand::from_byte(b'r'), KeyCommand::from_byte(b'a')),
            (Some(KeyCommand::Reverse), Some(KeyCommand::All))
        );
    }

    #[test]
    fn the_table_has_rates_and_marks_the_sort_column() {
        let mut view = view_sorted_by_name();
        view.apply_key(KeyCommand::NextColumn);
        let drawn = view.styled_lines(&example_reports());
        let columns_of = |at: usize| drawn[at].text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(drawn[0].text, KEYS);
        assert!(columns_of(1).starts_with("interface rx packets/s ▼ rx bytes/s"), "{}", columns_of(1));
        assert_eq!((columns_of(2), columns_of(3)), ("eth1 20 0 0".into(), "eth0 5 3 6".into()));
        assert_eq!(columns_of(4), "eth0 queue 0 5");
        let emphasis: Vec<_> = drawn.iter().map(|line| line.emphasis).collect();
        let none = Emphasis::None;
        assert_eq!(emphasis, [none, Emphasis::Header, none, Emphasis::Alarm, none]);
    }

    #[test]
    fn counters_of_a_named_interface_follow_the_table() {
        let view = TableView::new(false, true, false);
        let drawn = view.styled_lines(&[report_with_groups(
            "eth0",
            vec![counter_group(CounterSource::Link, &[("rx_crc_errors", 3, 2)])],
        )]);
        assert_eq!(drawn[0].text, NO_KEYS);
        assert!(drawn.iter().any(|line| line.text.contains("rx_crc_errors")), "{drawn:?}");
        assert!(
            !self::view_sorted_by_name()
                .styled_lines(&example_reports())
                .iter()
                .any(|line| line.text.contains("rx_dropped"))
        );
    }
}
