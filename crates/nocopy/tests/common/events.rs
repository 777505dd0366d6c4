//! A subscriber that keeps the library's events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RecordedEvent {
    pub(crate) level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl RecordedEvent {
    /// A field as text; empty if it is absent.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub(crate) fn message(&self) -> &str {
        self.field("message")
    }
}

/// The events of what this thread does meanwhile.
pub(crate) fn events_of(work: impl FnOnce()) -> Vec<RecordedEvent> {
    let recorder = EventRecorder::default();
    let events = Arc::clone(&recorder.0);
    // If there is only one, an event that another thread makes first is switched off for all threads.
    let _second = Dispatch::new(EventRecorder::default());
    tracing::subscriber::with_default(recorder, work);
    std::mem::take(&mut *events.lock().unwrap())
}

/// The half and the cause of each first copy; all events must be first copies.
pub(crate) fn first_copies(events: &[RecordedEvent]) -> Vec<(&str, &str)> {
    assert!(
        events.iter().all(|event| (event.message(), event.level) == ("first copy", Level::INFO)),
        "{events:?}"
    );
    events.iter().map(|event| (event.field("half"), event.field("cause"))).collect()
}

#[derive(Default)]
struct EventRecorder(Arc<Mutex<Vec<RecordedEvent>>>);

impl Subscriber for EventRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "nocopy"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("the library has no spans")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = FieldTexts::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        self.0.lock().unwrap().push(RecordedEvent { level, fields: fields.0 });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct FieldTexts(BTreeMap<&'static str, String>);

impl Visit for FieldTexts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}
