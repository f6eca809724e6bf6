//! Tells the demo: steps with their times, commands as the user would type them, and what changes while one waits. It only
//! prints.

use std::collections::BTreeMap;
use std::time::Instant;

use quorate_crds::{MemberRole, Phase};

use super::picture::Picture;

/// Who tells.
#[derive(Debug)]
pub struct Narrator {
    started: Instant,
    step: Instant,
    number: u32,
    phase: Option<Phase>,
    members: BTreeMap<String, (Option<MemberRole>, bool)>,
}

impl Narrator {
    /// Nothing has been told yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { started: now, step: now, number: 0, phase: None, members: BTreeMap::new() }
    }

    /// A new step begins.
    pub fn step(&mut self, title: &str) {
        self.number += 1;
        self.step = Instant::now();
        println!("\n{}. {title}", self.number);
    }

    /// A command, as the user would type it.
    #[expect(clippy::unused_self, reason = "all that is printed goes through the narrator")]
    pub fn command(&self, namespace: &str, args: &[&str]) {
        println!("   $ kubectl -n {namespace} {}", args.join(" "));
    }

    /// A sentence.
    #[expect(clippy::unused_self, reason = "all that is printed goes through the narrator")]
    pub fn plain(&self, text: &str) {
        println!("   {text}");
    }

    /// What a command printed.
    #[expect(clippy::unused_self, reason = "all that is printed goes through the narrator")]
    pub fn table(&self, text: &str) {
        for line in text.trim_end().lines() {
            println!("     {line}");
        }
    }

    /// What has changed since the last look.
    pub fn changes(&mut self, picture: &Picture) {
        if picture.phase() != self.phase {
            self.phase = picture.phase();
            if let Some(phase) = self.phase {
                self.tell(&format!("phase {phase}"));
            }
        }
        let members = picture.members();
        let mut changes = Vec::new();
        for (name, now) in &members {
            let before = self.members.get(*name);
            if before != Some(now) {
                changes.push(format!("{name} {}", words(before.copied(), *now)));
            }
        }
        changes.extend(
            self.members
                .keys()
                .filter(|name| !members.contains_key(name.as_str()))
                .map(|name| format!("{name} is gone")),
        );
        self.members = members.into_iter().map(|(name, member)| (name.to_owned(), member)).collect();
        for change in changes {
            self.tell(&change);
        }
    }

    fn tell(&self, text: &str) {
        println!("   {:>6.1} s  {text}", self.step.elapsed().as_secs_f64());
    }

    /// The step is done.
    pub fn done(&self, text: &str) {
        println!("   ✔ {text} ({:.1} s)", self.step.elapsed().as_secs_f64());
    }

    /// The demo is done: how to go on.
    pub fn end(&self, namespace: &str) {
        println!("\nDone in {:.0} s. The cluster stays up. Look around:", self.started.elapsed().as_secs_f64());
        println!("   cargo run -q -p quorate-e2e -- kubectl -- -n {namespace} get etcd,pods,pvc");
        println!("   cargo run -q -p quorate-e2e -- kubectl -- -n {namespace} delete pod -l quorate.dev/cluster=db");
        println!("   cargo run -q -p quorate-e2e -- kubectl -- -n {namespace} get etcd -w");
        println!("Take everything down:");
        println!("   make down");
    }
}

/// What became of a member, in words.
fn words(before: Option<(Option<MemberRole>, bool)>, now: (Option<MemberRole>, bool)) -> &'static str {
    match now {
        (Some(MemberRole::Voter), true) => match before {
            Some((Some(MemberRole::Learner), _)) => "was promoted: a healthy voter",
            Some(_) | None => "is a healthy voter",
        },
        (Some(MemberRole::Voter), false) => "is a voter, and does not answer",
        (Some(MemberRole::Learner), true) => "follows as a learner",
        (Some(MemberRole::Learner), false) => "was added as a learner and is being started",
        (Some(MemberRole::Waiting), _) => "has a pod that waits for its turn",
        (Some(MemberRole::Leaving), _) => "was removed; pod and volume are going",
        (None, _) => "is there",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_is_told_as_one() {
        let learner = Some((Some(MemberRole::Learner), true));
        assert_eq!(words(learner, (Some(MemberRole::Voter), true)), "was promoted: a healthy voter");
        assert_eq!(words(None, (Some(MemberRole::Voter), true)), "is a healthy voter");
    }
}
