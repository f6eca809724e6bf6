//! How the operator's rights and its calls differ, and how that is told. Must not decide what follows from it: that is
//! for whoever ran the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::calls::{Calls, Denial};
use super::{Call, Grant};

/// What is granted beside what was called.
#[derive(Debug)]
pub struct Comparison {
    /// How often each right was used.
    uses: BTreeMap<Grant, u64>,
    /// The calls that were denied for want of a right.
    denied: BTreeMap<Call, Denial>,
    /// How often a call was denied that the roles allow.
    early: u64,
    /// The calls that were allowed though no role of the operator allows them.
    others: BTreeSet<String>,
    unreadable: u64,
    /// Older lines of the log may be gone.
    cut_off: bool,
}

impl Comparison {
    /// Compares what is granted with what was called, by a log that may have lost its oldest lines.
    pub fn new(grants: BTreeSet<Grant>, calls: Calls, cut_off: bool) -> Self {
        let Calls { allowed, denied, unreadable } = calls;
        let mut uses: BTreeMap<Grant, u64> = grants.into_iter().map(|grant| (grant, 0)).collect();
        let mut others = BTreeSet::new();
        for (call, times) in allowed {
            let mut covering = uses.iter_mut().filter(|(grant, _)| grant.covers(&call)).peekable();
            if covering.peek().is_none() {
                others.insert(call.right.to_string());
            }
            covering.for_each(|(_, used)| *used += times);
        }
        // An API server that has just started serves before it knows the roles, and some scenes start one.
        let (early, denied): (BTreeMap<_, _>, _) =
            denied.into_iter().partition(|(call, _)| uses.keys().any(|grant| grant.covers(call)));
        let early = early.values().map(|denial: &Denial| denial.times).sum();
        Self { uses, denied, early, others, unreadable, cut_off }
    }

    /// Whether a right was lacking.
    pub fn lacks_a_right(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Whether a right was surely never used: of a log that lacks its oldest lines nobody can say so.
    pub fn has_an_unused_right(&self) -> bool {
        !self.cut_off && self.uses.values().any(|times| *times == 0)
    }

    /// What is granted and never used, and what is out of order.
    pub fn summary(&self) -> String {
        let unused = self.uses.values().filter(|times| **times == 0).count();
        let verdict = if unused == 0 { "all used".to_owned() } else { format!("{unused} never used") };
        let mut text = format!("operator's RBAC: {} grants, {verdict}\n", self.uses.len());
        let never = self.by_target().into_iter().filter_map(|(target, verbs)| {
            let never: Vec<_> = verbs.into_iter().filter(|(_, times)| *times == 0).map(|(verb, _)| verb).collect();
            (!never.is_empty()).then(|| format!("  {target}: {}\n", never.join(", ")))
        });
        text.extend(never);
        self.tell_the_rest(&mut text);
        text
    }

    /// How often each right was used.
    pub fn table(&self) -> String {
        let rows = self.by_target();
        let width = rows.keys().map(String::len).max().unwrap_or_default();
        let rows = rows.into_iter().map(|(target, verbs)| {
            let verbs: Vec<_> = verbs.iter().map(|(verb, times)| format!("{verb} {times}")).collect();
            format!("{target:<width$}  {}\n", verbs.join(", "))
        });
        rows.collect()
    }

    fn by_target(&self) -> BTreeMap<String, Vec<(&str, u64)>> {
        let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (grant, times) in &self.uses {
            rows.entry(grant.target()).or_default().push((&*grant.right.verb, *times));
        }
        rows
    }

    fn tell_the_rest(&self, text: &mut String) {
        let mut tell = |line: String| {
            // Writing to a String never fails.
            let _ = writeln!(text, "  {line}");
        };
        for (call, Denial { times, last, message }) in &self.denied {
            tell(format!("denied: {}, {times} times, last at {last}: {message}", call.right));
        }
        if self.early > 0 {
            tell(format!(
                "{} calls were denied that the roles allow: an API server that has just started doesn't know them yet",
                self.early
            ));
        }
        for other in &self.others {
            tell(format!("allowed, but not by the operator's own roles: {other}"));
        }
        if self.cut_off {
            tell("the oldest lines of the audit log may be gone, and what they show with them".into());
        }
        if self.unreadable > 0 {
            tell(format!("{} lines of the audit log can't be read", self.unreadable));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::calls::tests::{line, read};
    use super::super::grants::tests::manifests;
    use super::super::{Right, granted};
    use super::*;

    fn compared(grants: impl IntoIterator<Item = Grant>, lines: &[Value]) -> Comparison {
        Comparison::new(grants.into_iter().collect(), read(lines), false)
    }

    fn grant(resource: &str, verb: &str) -> Grant {
        let right = Right { group: String::new(), resource: resource.into(), verb: verb.into() };
        Grant { right, names: BTreeSet::new(), namespace: None }
    }

    /// One call for each right of the manifests.
    fn calls_of_all(grants: &BTreeSet<Grant>) -> Vec<Value> {
        let call = |Grant { right, names, namespace }: &Grant| {
            let (resource, part) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
            let of = json!({ "apiGroup": right.group, "subresource": part,
                             "name": names.first().map_or("db", String::as_str),
                             "namespace": namespace.as_deref().unwrap_or("ns") });
            let stage = if right.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
            line(&right.verb, resource, 200, &json!({ "objectRef": of, "stage": stage }))
        };
        grants.iter().map(call).collect()
    }

    #[test]
    fn rights_that_are_all_used_are_in_order() {
        let grants = granted(manifests()).unwrap();
        let comparison = compared(grants.clone(), &calls_of_all(&grants));
        assert!(!comparison.has_an_unused_right() && !comparison.lacks_a_right());
        assert_eq!(comparison.summary(), format!("operator's RBAC: {} grants, all used\n", grants.len()));
    }

    #[test]
    fn a_right_too_many_is_noticed() {
        let used = granted(manifests()).unwrap();
        let mut objects = manifests();
        let role = objects.iter_mut().find(|object| object["kind"] == "ClusterRole").unwrap();
        let planted = json!({ "apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"] });
        role["rules"].as_array_mut().unwrap().push(planted);
        let comparison = compared(granted(objects).unwrap(), &calls_of_all(&used));
        assert!(comparison.has_an_unused_right() && !comparison.lacks_a_right());
        assert!(
            comparison.summary().ends_with(" grants, 1 never used\n  pods/exec: create\n"),
            "{}",
            comparison.summary()
        );
    }

    #[test]
    fn a_right_that_is_lacking_is_noticed() {
        let grants = granted(manifests()).unwrap();
        let mut lines = calls_of_all(&grants);
        let said = json!({ "responseStatus": { "message": "no" } });
        lines.extend([line("get", "configmaps", 403, &said), line("get", "configmaps", 403, &said)]);
        let comparison = compared(grants, &lines);
        assert!(comparison.lacks_a_right() && !comparison.has_an_unused_right());
        let told = "  denied: get configmaps, 2 times, last at 2026-05-01T10:00:00.000001Z: no\n";
        assert!(comparison.summary().ends_with(told), "{}", comparison.summary());
    }

    #[test]
    fn a_granted_call_that_is_denied_is_told_and_no_use() {
        let comparison = compared([grant("pods", "get")], &[line("get", "pods", 403, &json!({}))]);
        assert!(comparison.has_an_unused_right() && !comparison.lacks_a_right());
        assert!(comparison.summary().contains("1 calls were denied that the roles allow"), "{}", comparison.summary());
    }

    #[test]
    fn a_call_by_another_s_right_is_told() {
        let lines = [line("create", "selfsubjectreviews", 201, &json!({})), line("get", "pods", 200, &json!({}))];
        let comparison = compared([grant("pods", "get")], &lines);
        let told = "  allowed, but not by the operator's own roles: create selfsubjectreviews\n";
        assert!(comparison.summary().ends_with(told), "{}", comparison.summary());
    }

    #[test]
    fn the_table_has_a_line_for_each_resource() {
        let grants = [grant("pods", "get"), grant("pods", "list"), grant("pods/resize", "patch")];
        let comparison = compared(grants, &[line("get", "pods", 200, &json!({}))]);
        assert_eq!(comparison.table(), "pods         get 1, list 0\npods/resize  patch 0\n");
        assert_eq!(
            comparison.summary(),
            "operator's RBAC: 3 grants, 2 never used\n  pods: list\n  pods/resize: patch\n"
        );
    }

    #[test]
    fn lines_that_are_not_seen_are_told() {
        let calls = Calls { unreadable: 2, ..Calls::default() };
        let summary = Comparison::new(BTreeSet::new(), calls, true).summary();
        assert!(summary.contains("may be gone") && summary.contains("2 lines of the audit log can't"), "{summary}");
        let summary = Comparison::new(BTreeSet::new(), Calls::default(), false).summary();
        assert_eq!(summary, "operator's RBAC: 0 grants, all used\n");
    }
}
