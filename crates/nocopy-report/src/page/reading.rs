//! Checks pages as a browser reads them, for tests, also of other crates: well-formed, complete, and without
//! external resources.

use std::collections::HashSet;

use roxmltree::{Document, Node};

/// The body of a page. Its head is not XML, and always the same.
pub fn page_body(page: &str) -> &str {
    let start = page.find("<body>").expect("a body");
    page[start..].trim_end().strip_suffix("</html>").expect("an end")
}

pub fn elements_named<'a, 'b>(
    document: &'a Document<'b>,
    name: &'a str,
) -> impl Iterator<Item = Node<'a, 'b>> {
    document.descendants().filter(move |node| node.tag_name().name() == name)
}

pub fn text_content(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect()
}

pub fn assert_page_is_valid(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert!(
        !page.contains("http")
            && !page.contains("<script")
            && !page.contains("NaN")
            && !page.contains("inf%")
    );
    let document = Document::parse(page_body(page)).unwrap_or_else(|error| panic!("{error}: {page}"));
    let ids: Vec<_> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    let known: HashSet<_> = ids.iter().copied().collect();
    assert_eq!(ids.len(), known.len(), "ids are there once: {ids:?}");
    for node in document.descendants() {
        assert!(
            !node
                .attributes()
                .any(|attribute| attribute.name().starts_with("on") || attribute.name() == "src")
        );
        let references = node.attribute("aria-labelledby").unwrap_or_default().split_whitespace();
        assert!(references.into_iter().all(|id| known.contains(id)), "{node:?}");
        if let Some(link) = node.attribute("href") {
            assert!(known.contains(link.strip_prefix('#').expect("within the page")), "{link}");
        }
        if let Some(fill) = node.attribute("fill").and_then(|fill| fill.strip_prefix("url(#")) {
            assert!(known.contains(fill.trim_end_matches(')')), "{fill}");
        }
    }
    for figure in elements_named(&document, "figure") {
        let captions = figure.descendants().filter(|node| node.tag_name().name() == "figcaption");
        let charts = figure.descendants().filter(|node| node.attribute("role") == Some("img"));
        assert_eq!((charts.count(), captions.count()), (1, 1));
        let mut around = figure.ancestors().skip(1).take(2).flat_map(|node| node.descendants());
        assert!(around.any(|node| node.tag_name().name() == "table"), "{figure:?}");
    }
    for attribute in document.descendants().flat_map(|node| node.attributes()) {
        let is_horizontal = ["x", "x1", "x2"].contains(&attribute.name());
        let percent = attribute.value().strip_suffix('%').filter(|_| is_horizontal);
        let percent = percent.map(|number| number.parse::<f64>().unwrap());
        assert!(percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{attribute:?}");
    }
}

pub fn cell_texts(page: &str) -> HashSet<String> {
    let document = Document::parse(page_body(page)).unwrap();
    let cells = document.descendants().filter(|node| ["td", "th"].contains(&node.tag_name().name()));
    cells.map(text_content).collect()
}

pub fn chart_count(page: &str) -> usize {
    page_body(page).matches("role=\"img\"").count()
}
