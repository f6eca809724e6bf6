//! Whatever is killed comes back as it was: the same identities on the same volumes, every acknowledged write, and no
//! membership call.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::names::LABEL_CLUSTER;
use quorate_crds::{ConditionType, Reason};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::{pods, processes};
use quorate_e2e::scene::{Cluster, Membership, PATIENCE, Stage, Wish, Writer, Written, play, thorough};

use crate::roll;

/// The reasons of the events that tell how a member came.
const ADDED: &str = Reason::MemberAdded.as_str();
const PROMOTED: &str = Reason::MemberPromoted.as_str();

/// What the damage leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// A quorum: what is written never stops for long. For that no other scene may run, which is how `make e2e` does it.
    Quorum,
    /// Less than that: nothing is written until some are back. How soon that is, is not asked here.
    TooFew,
    /// The same, and the operator is gone as well.
    TooFewWithoutOperator,
}

impl Left {
    fn stage(self) -> Stage {
        match self {
            Self::Quorum if !thorough() => Stage::Shared,
            Self::Quorum | Self::TooFewWithoutOperator => Stage::Alone,
            Self::TooFew => Stage::Shared,
        }
    }

    fn judge(self, written: &Written) -> Result<()> {
        match self {
            Self::Quorum if thorough() => written.outlived_a_member(),
            Self::Quorum | Self::TooFew | Self::TooFewWithoutOperator => Ok(()),
        }
    }
}

/// Creates three members, writes, does the damage, and demands that everything is as before.
async fn comes_back(
    name: &str,
    left: Left,
    damage: impl AsyncFnOnce(&Cluster, &Membership) -> Result<()>,
) -> Result<()> {
    play(name, left.stage(), async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        let membership = db.settles(3).await?;
        let before = db.identities().await?;
        let calls = MembershipCalls::so_far(&db).await?;
        let writer = Writer::start(&db, "w").await?;
        writer.writes(50).await?;
        damage(&db, &membership).await?;
        writer.writes(50).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        calls.are_all(&db).await?;
        let written = writer.stop().await?;
        roll::tell(name, &written);
        written.check(&db).await?;
        left.judge(&written)
    })
    .await
}

/// What is left of every membership call, also of one that another one made undone: the event that tells of it, with
/// how often it was told if that was more than once, and the serial that a newcomer would get.
#[derive(Debug)]
pub struct MembershipCalls {
    events: BTreeSet<String>,
    next_serial: u32,
}

impl MembershipCalls {
    /// Those that were made so far.
    pub async fn so_far(db: &Cluster) -> Result<Self> {
        const CALLS: [Reason; 3] = [Reason::MemberAdded, Reason::MemberPromoted, Reason::MemberRemoved];
        let columns = ["get", "events", "-o", "custom-columns=R:.reason,N:.series.count,M:.message", "--no-headers"];
        let events = db.scene().kubectl(&columns).await?.well()?;
        let tells = |line: &&str| CALLS.iter().any(|call| line.starts_with(call.as_str()));
        // The columns are as wide as their widest line.
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let ledger = db.view().await?.status().ledger.context("there is no ledger")?;
        Ok(Self { events: events.lines().filter(tells).map(line).collect(), next_serial: ledger.next_serial })
    }

    /// Demands that none was made since. Events come late at times: one that tells, for the first time, how one of the
    /// members came that are there tells of a call from before, as they are the same members.
    pub async fn are_all(&self, db: &Cluster) -> Result<()> {
        let now = Self::so_far(db).await?;
        let members = db.answers().await?.members;
        let is_late = |event: &&String| {
            let mut words = event.split(' ');
            let came = words.next().is_some_and(|reason| [ADDED, PROMOTED].contains(&reason));
            came && words.next() == Some("<none>") && words.next().is_some_and(|name| members.contains_key(name))
        };
        let others: Vec<_> = now.events.difference(&self.events).filter(|event| !is_late(event)).collect();
        ensure!(
            others.is_empty() && now.next_serial == self.next_serial,
            "a membership call was made, and made undone: {others:?}, {} comes next, before {self:?}",
            now.next_serial
        );
        Ok(())
    }
}

fn names(membership: &Membership) -> Vec<&str> {
    membership.members.keys().map(String::as_str).collect()
}

fn follower(membership: &Membership) -> Result<&str> {
    let leader = membership.leader()?;
    Ok(names(membership).into_iter().find(|name| *name != leader).unwrap_or(leader))
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_member_killed_with_sigkill_comes_back_as_it_was() -> Result<()> {
    comes_back("kill_sigkill", Left::Quorum, async |db, members| {
        processes::kill_member(db.scene(), follower(members)?).await
    })
    .await
}

#[tokio::test]
async fn the_leader_killed_with_sigkill_comes_back_as_it_was() -> Result<()> {
    comes_back("kill_leader_process", Left::Quorum, async |db, members| {
        processes::kill_member(db.scene(), members.leader()?).await
    })
    .await
}

/// Nothing is written once the others were removed: that they were, etcd has in memory only, unless the operator sees to it.
#[tokio::test]
async fn the_last_voter_killed_after_the_others_were_removed_leads_again() -> Result<()> {
    play("kill_last_voter", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.scale(1).await?;
        let left = db.settles(1).await?;
        processes::kill_member(scene, left.leader()?).await?;
        db.settles(1).await.map(drop)
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_pod_deleted_by_force_comes_back_as_it_was() -> Result<()> {
    comes_back("kill_pod", Left::Quorum, async |db, members| pods::delete_by_force(db, &[follower(members)?]).await)
        .await
}

/// Somebody writes another cluster's name on it: what the watch brings of it from then on is of that one.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_pod_whose_label_was_changed_comes_back_once_it_is_deleted() -> Result<()> {
    comes_back("kill_relabelled", Left::Quorum, async |db, members| {
        let name = follower(members)?;
        let label = format!("{LABEL_CLUSTER}=another");
        db.scene().kubectl(&["label", "--overwrite", "pod", name, &label]).await?.well()?;
        db.until("it to be told", PATIENCE, |view| {
            let stalled = view.condition(ConditionType::Stalled).context("it is not said whether it is stalled")?;
            ensure!(stalled.reason == Reason::NameTaken.as_str() && stalled.message.contains(name), "{stalled:?}");
            Ok(())
        })
        .await?;
        pods::delete_by_force(db, &[name]).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_leaders_pod_deleted_by_force_comes_back_as_it_was() -> Result<()> {
    comes_back("kill_leader_pod", Left::Quorum, async |db, members| {
        pods::delete_by_force(db, &[members.leader()?]).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn two_of_three_pods_come_back_as_they_were() -> Result<()> {
    comes_back("kill_two", Left::TooFew, async |db, members| pods::delete_by_force(db, &names(members)[..2]).await)
        .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn all_pods_come_back_as_they_were() -> Result<()> {
    comes_back("kill_all", Left::TooFew, async |db, members| pods::delete_by_force(db, &names(members)).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn all_pods_and_the_operator_come_back_as_they_were() -> Result<()> {
    comes_back("kill_all_and_operator", Left::TooFewWithoutOperator, async |db, members| {
        let operator = Operator::new(db.scene().client());
        pods::delete_by_force(db, &names(members)).await?;
        operator.delete_pods().await?;
        operator.is_ready().await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn all_processes_killed_at_once_come_back_as_they_were() -> Result<()> {
    comes_back("kill_all_processes", Left::TooFew, async |db, members| {
        for name in names(members) {
            processes::kill_member(db.scene(), name).await?;
        }
        Ok(())
    })
    .await
}
