//! Tries a release on the node of each member that is to be switched to it, before anything is stopped. Starts and ends
//! trials; switches nothing.

use crate::{
    Finding, LookAgain, Outcome, Release, Step, Trial, World,
    census::{Census, Peer},
    draft::Draft,
};

/// How old a trial that has shown nothing has to be until another is made in its place: a node that is full stays so for a
/// while.
const AGAIN_MS: u64 = 15_000;

/// What the trials of a release have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It runs wherever it is to run.
    Passed,
    /// Not all trials have ended.
    Open,
    /// It does not run somewhere.
    Failed,
}

/// Has this release tried for each voter that is not told to run it yet, and says what came of that.
pub fn of(draft: &mut Draft<'_>, census: &Census<'_>, release: &Release) -> Verdict {
    let world = draft.world;
    end_others(draft, |trial| census.voters.iter().any(|voter| is_of(world, voter, release, trial)));
    let due = census.voters.iter().filter(|voter| voter.member.told() != Some(release));
    let verdict = due.map(|voter| of_one(draft, voter, release)).max().unwrap_or(Verdict::Passed);
    if verdict == Verdict::Open {
        draft.look(LookAgain::Soon);
    }
    verdict
}

fn of_one(draft: &mut Draft<'_>, voter: &Peer<'_>, release: &Release) -> Verdict {
    let serial = voter.member.serial;
    let Some(trial) = draft.world.trials.iter().find(|trial| is_of(draft.world, voter, release, trial)) else {
        // One that is down stops by no switch; its turn comes when it is back.
        let node = voter.member.pod.filter(|_| voter.member.alive().is_some()).and_then(|pod| pod.node.clone());
        if let Some(node) = node {
            draft.step(Step::TryRelease { serial, node, release: release.clone() });
        }
        return Verdict::Open;
    };
    let (finding, verdict) = match trial.outcome {
        Outcome::Passed => return Verdict::Passed,
        Outcome::Open => (Finding::TrialOpen, Verdict::Open),
        Outcome::ImageMissing => (Finding::TrialImageMissing, Verdict::Failed),
        Outcome::ImageUnreachable | Outcome::AgentImageMissing => (Finding::TrialImageMissing, Verdict::Open),
        Outcome::Failed => (Finding::TrialFailed, Verdict::Failed),
        Outcome::Undecided => {
            again(draft, trial);
            draft.tell_of(serial, Finding::TrialUndecided);
            return Verdict::Open;
        }
    };
    draft.tell_of(serial, finding);
    if verdict == Verdict::Open {
        draft.look(LookAgain::Soon);
    }
    verdict
}

/// Whether it is the trial that this voter's switch waits for.
fn is_of(world: &World, voter: &Peer<'_>, release: &Release, trial: &Trial) -> bool {
    trial.serial == voter.member.serial
        && trial.release == *release
        && trial.template == world.wish.template
        && voter.member.pod.is_some_and(|pod| pod.node.as_ref() == Some(&trial.node))
}

/// Ends one that has shown nothing, for another to be made, once it is old enough: its kubelet may have turned it away, and
/// would turn the next one away as fast.
fn again(draft: &mut Draft<'_>, trial: &Trial) {
    if draft.world.now.since(trial.created) >= AGAIN_MS {
        end(draft, trial);
    }
}

/// Ends the trials that nothing waits for.
pub fn end_all(draft: &mut Draft<'_>) {
    end_others(draft, |_| false);
}

fn end_others(draft: &mut Draft<'_>, needed: impl Fn(&Trial) -> bool) {
    let world = draft.world;
    let others: Vec<_> = world.trials.iter().filter(|trial| !needed(trial)).collect();
    for trial in others {
        end(draft, trial);
    }
}

fn end(draft: &mut Draft<'_>, trial: &Trial) {
    if !trial.terminating {
        draft.step(Step::EndTrial { serial: trial.serial, trial: trial.uid.clone() });
    }
}
