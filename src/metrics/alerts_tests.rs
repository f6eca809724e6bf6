//! That each alert of `deploy/monitoring` can be read by Prometheus, asks for metrics, labels and values that there are, and is
//! in docs/operator.md as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use quorate_crds::Phase;
use serde_json::Value;

use super::*;

/// What Prometheus adds by itself: the Service it was found by.
const JOB: &str = "job";
const OPERATORS_JOB: &str = "quorate-metrics";

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// What each alert asks, by its name, and for how long it must hold.
fn alerts() -> BTreeMap<String, (String, Option<String>)> {
    let object: Value = serde_saphyr::from_str(&file("deploy/monitoring/alerts.yaml")).unwrap();
    let rules = object["spec"]["groups"][0]["rules"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let alert = |rule: &Value| {
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        assert!(rule["annotations"]["summary"].is_string() && rule["annotations"]["description"].is_string(), "{rule}");
        (text(&rule["alert"]), (text(&rule["expr"]), rule.get("for").map(text)))
    };
    let alerts: BTreeMap<_, _> = rules.iter().map(alert).collect();
    assert_eq!(alerts.len(), rules.len(), "each has a name of its own");
    alerts
}

/// The same as the documentation has it: rows of an alert, an expression and a time.
fn documented() -> BTreeMap<String, (String, Option<String>)> {
    let page = file("docs/operator.md").replace(r"\|", "\0");
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().replace('\0', "|")).collect();
        let [_, alert, expression, held, _, _] = &cells[..] else { return None };
        let held = (held != "-").then(|| held.replace(" min", "m"));
        Some((alert.strip_prefix('`')?.strip_suffix('`')?.to_owned(), (expression.trim_matches('`').to_owned(), held)))
    };
    let (_, table) = page.split_once("\n| Alert |").unwrap();
    table.lines().skip(2).take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

/// One of each metric, as Prometheus gets it.
fn rendered() -> String {
    let (metrics, now) = (Metrics::new(), Some(Timestamp::now()));
    for phase in Phase::ALL {
        metrics.phase(phase.as_str(), Some(phase.as_str()));
    }
    for (verb, outcome) in [("get", "ok"), ("list", "deadline"), ("apply", "error")] {
        metrics.called("kubernetes", verb, "Pod", outcome);
    }
    let archive = Archive { health: "healthy", lag_seconds: Some(0), committed_at: now, full_at: now, proved_at: now };
    metrics.archive("ns/a", Some(archive));
    metrics.certificates("ns/a", now);
    metrics.render().unwrap()
}

/// What an expression selects.
#[derive(Default)]
struct Selected(Vec<VectorSelector>);

impl ExprVisitor for Selected {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
        if let Expr::VectorSelector(selector) = expression {
            self.0.push(selector.clone());
        }
        if let Expr::MatrixSelector(matrix) = expression {
            self.0.push(matrix.vs.clone());
        }
        Ok(true)
    }
}

/// What an expression asks for and Quorate has not, or that it can't be read.
fn missing(expression: &str, rendered: &str) -> Vec<String> {
    let parsed = match parser::parse(expression) {
        Ok(parsed) => parsed,
        Err(error) => return vec![error],
    };
    let mut selected = Selected::default();
    let Ok(_) = walk_expr(&mut selected, &parsed);
    let ours = selected.0.iter().filter_map(|selector| Some((selector.name.as_ref()?, selector)));
    let ours = ours.filter(|(name, _)| name.starts_with("quorate_"));
    ours.flat_map(|(name, selector)| lacking(name, &selector.matchers.matchers, rendered)).collect()
}

fn lacking(name: &str, matchers: &[Matcher], rendered: &str) -> Vec<String> {
    let is_of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let series: Vec<_> = rendered.lines().filter(is_of).collect();
    if series.is_empty() {
        return vec![name.to_owned()];
    }
    let values = |matcher: &Matcher| match &matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![matcher.value.clone()],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').map(str::to_owned).collect(),
    };
    let asked =
        matchers.iter().flat_map(|matcher| values(matcher).into_iter().map(|value| (matcher.name.as_str(), value)));
    let there = |(label, value): &(&str, String)| match *label {
        JOB => value == OPERATORS_JOB,
        label => series.iter().any(|line| line.contains(&format!("{label}=\"{value}\""))),
    };
    asked.filter(|asked| !there(asked)).map(|(label, value)| format!("{name}{{{label}=\"{value}\"}}")).collect()
}

#[test]
fn each_alert_asks_for_what_there_is() {
    let rendered = rendered();
    let alerts = alerts();
    for (alert, (expression, _)) in &alerts {
        assert_eq!(missing(expression, &rendered), [""; 0], "{alert}");
    }
    let ours = alerts.values().filter(|(expression, _)| expression.contains("quorate_")).count();
    assert!(ours >= 10, "{ours} alerts are of Quorate");
}

#[test]
fn an_alert_for_something_else_is_noticed() {
    let rendered = rendered();
    for (expression, lacks) in [
        ("sum(quorate_cluster) > 0", "quorate_cluster"),
        (r#"quorate_clusters{phase=~"Running|Healed"}"#, r#"quorate_clusters{phase="Healed"}"#),
        (r#"increase(quorate_backups_total{result="failed"}[1h])"#, r#"quorate_backups_total{result="failed"}"#),
        (r#"quorate_archive_lag_seconds{job="quorate"}"#, r#"quorate_archive_lag_seconds{job="quorate"}"#),
    ] {
        assert_eq!(missing(expression, &rendered), [lacks]);
    }
    assert_eq!(missing("sum(quorate_clusters", &rendered).len(), 1, "it can't be read");
}

#[test]
fn the_alerts_are_those_that_are_documented() {
    let names = |alerts: &BTreeMap<String, _>| alerts.keys().cloned().collect::<BTreeSet<_>>();
    let (alerts, documented) = (alerts(), documented());
    assert_eq!(names(&alerts), names(&documented));
    assert_eq!(alerts, documented);
}

#[test]
fn what_is_monitored_is_what_quorate_makes() {
    let monitor = |path: &str| serde_saphyr::from_str::<Value>(&file(path)).unwrap();
    let service = monitor("deploy/base/service.yaml");
    let operator = monitor("deploy/monitoring/operator.yaml");
    assert_eq!(service["metadata"]["name"], OPERATORS_JOB);
    assert_eq!(operator["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    assert_eq!(operator["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
}
