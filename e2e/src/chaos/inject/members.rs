//! Faults of members: their processes, pods, volumes and networks.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use quorate_crds::{ConditionType, Phase};
use rustix::process::Signal;
use tokio::time::Instant;

use super::machinery::during;
use super::{Carried, Injector, TRY_PAUSE, UnderWay, tried};
use crate::chaos::clock::Moment;
use crate::chaos::cuts::Cut;
use crate::chaos::fault::{Loss, Victims, Way};
use crate::chaos::looks;
use crate::chaos::schedule::LOSS_SEEN_WITHIN;
use crate::faults::{pods, processes};
use crate::lab::{LabError, PodEnd};
use crate::scene::{EtcdProcess, PATIENCE, etcd_processes, longest};

/// How long a loss of volumes waits for a moment in which the cluster can take it: a node is away for up to 18 s, and its
/// members need some seconds more to be back.
pub(super) const CALM_WITHIN: Duration = Duration::from_secs(30);
/// How long the look may take by which such a moment is known: one that takes longer tells of another moment.
pub(super) const CALM_LOOK: Duration = Duration::from_secs(20);
/// How many volumes are lost at a time at most: a minority of five.
const MOST_LOST: u32 = 2;
/// How long reading where a volume is may take, and emptying it.
const EMPTIED_WITHIN: Duration = Duration::from_secs(30);
/// How long a loss takes at most, with the wait for its moment.
pub(super) const LOSS_WITHIN: Duration = {
    let (deleted, emptied) = (loses_within(Loss::Deleted), loses_within(Loss::Emptied));
    let longer = if deleted.as_millis() > emptied.as_millis() { deleted } else { emptied };
    CALM_WITHIN.saturating_add(TRY_PAUSE).saturating_add(CALM_LOOK).saturating_add(longer)
};

/// How long a loss takes at most once it has begun.
pub(super) const fn loses_within(how: Loss) -> Duration {
    match how {
        Loss::Deleted => pods::LOSS_WITHIN,
        Loss::Emptied => EMPTIED_WITHIN.saturating_add(longest(PATIENCE)).saturating_mul(MOST_LOST),
    }
}

impl Injector {
    /// The names of those that a fault hits now.
    fn victims(&self, victims: Victims) -> Vec<String> {
        let latest = self.looks.latest();
        let members =
            if latest.voters.is_empty() { self.book.places().keys().cloned().collect() } else { latest.voters };
        victims.of(&members, latest.leader.as_deref()).into_iter().map(str::to_owned).collect()
    }

    fn processes(&self, victims: Victims) -> Vec<EtcdProcess> {
        let names = self.victims(victims);
        let running = etcd_processes(self.cluster.scene().namespace()).into_iter();
        running.filter(|process| names.iter().any(|name| name == process.member())).collect()
    }

    pub(super) fn kill_processes(&self, victims: Victims) -> Carried {
        let processes = signalled(self.processes(victims), Signal::KILL);
        done_to(processes.iter().map(EtcdProcess::member))
    }

    /// On a node that is away nobody may delete a pod by force: that is documented as what not to do. With the API server
    /// away the tries go on for a while, in which a node may go: so each looks anew.
    pub(super) async fn delete_pods(&self, victims: Victims, grace: bool) -> Result<Carried> {
        let params = if grace { DeleteParams::default() } else { DeleteParams::default().grace_period(0) };
        let pods = self.cluster.pods();
        let mut deleted = Vec::new();
        for name in self.victims(victims) {
            let done = tried(async || {
                if !grace && self.is_away(&name) {
                    return Ok(false);
                }
                match pods.delete(&name, &params).await {
                    Ok(_) => Ok(true),
                    Err(kube::Error::Api(answer)) if answer.is_not_found() => Ok(true),
                    Err(error) => Err(error.into()),
                }
            });
            if done.await? {
                deleted.push(name);
            }
        }
        Ok(done_to(deleted.iter().map(String::as_str)))
    }

    /// Whether a member is on a node that is away, or nobody knows where it is.
    fn is_away(&self, name: &str) -> bool {
        self.book.places().get(name).is_none_or(|place| self.away().contains(&place.node))
    }

    /// Waits for its moment, says when that was, and is left out if none comes. One loss at a time: the next one looks at
    /// what the one before has left.
    pub(super) async fn lose_volumes(
        &self,
        victims: Victims,
        how: Loss,
        under_way: UnderWay<'_>,
        begun: &mut Moment,
    ) -> Result<Carried> {
        let until = Instant::now() + CALM_WITHIN;
        loop {
            let Ok(mut last) = tokio::time::timeout_at(until, self.last_loss.lock()).await else {
                return Ok(Carried::Skipped("other volumes are being lost".into()));
            };
            let names = self.victims(victims);
            let look = tokio::time::timeout(CALM_LOOK, Box::pin(self.may_lose(&names, *last, under_way)));
            match look.await.context("failed to look in time").flatten() {
                Ok(()) => {
                    (*last, *begun) = (Some(Instant::now()), self.clock.now());
                    let carried = self.lose(&names, how).await;
                    // With the API server away it may have taken a while.
                    *last = Some(Instant::now());
                    return carried;
                }
                Err(why) if Instant::now() >= until => return Ok(Carried::Skipped(format!("{why:#}"))),
                Err(_) => drop(last),
            }
            tokio::time::sleep(TRY_PAUSE).await;
        }
    }

    async fn lose(&self, names: &[String], how: Loss) -> Result<Carried> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match how {
            Loss::Deleted => pods::lose_volumes(&self.cluster, &names).await?,
            Loss::Emptied => {
                for name in &names {
                    let emptied = tokio::time::timeout(EMPTIED_WITHIN, pods::empty_volume(&self.cluster, name));
                    emptied.await.with_context(|| format!("failed to empty the volume of {name} in time"))??;
                    processes::kill_member(self.cluster.scene(), name).await?;
                }
            }
        }
        Ok(done_to(names.into_iter()))
    }

    /// Whether the cluster can take it now, and nothing else that counts comes close to it: a change of the spec, or the
    /// loss before, which the operator may not have seen yet.
    async fn may_lose(&self, names: &[String], last: Option<Instant>, under_way: UnderWay<'_>) -> Result<()> {
        self.can_take_a_loss_of(names).await?;
        ensure!(last.is_none_or(|last| last.elapsed() >= LOSS_SEEN_WITHIN), "volumes were lost shortly before");
        let at = under_way.started.elapsed();
        ensure!(under_way.schedule.has_room_for_a_loss(at), "a change of the spec is too close");
        Ok(())
    }

    /// Whether all is as it should be, so that what is left has a quorum and every acknowledged write.
    async fn can_take_a_loss_of(&self, names: &[String]) -> Result<()> {
        ensure!(self.away().is_empty(), "a node is away");
        let view = tried(async || self.cluster.view().await).await?;
        let replicas = usize::try_from(view.object.spec.replicas)?;
        ensure!(names.len() <= replicas.saturating_sub(1) / 2, "{} of {replicas} is too many", names.len());
        ensure!(view.is_current() && view.phase() == Some(Phase::Running), "the phase is {:?}", view.phase());
        ensure!(view.is(ConditionType::Ready) && !view.is(ConditionType::Reconciling), "it is not Ready");
        let going = |meta: &kube::api::ObjectMeta| meta.deletion_timestamp.is_some();
        ensure!(!view.pods.values().any(|pod| going(&pod.metadata)), "a pod is going");
        ensure!(!view.claims.values().any(|claim| going(&claim.metadata)), "a claim is going");
        let (_, place) = self.book.any(0).context("no member has an address")?;
        let list = self.cluster.membership_at(&place.door).await?;
        ensure!(list.members.len() == replicas, "{} members are listed, not {replicas}", list.members.len());
        ensure!(list.voters().len() == replicas, "not all vote");
        let running = looks::running(self.cluster.scene().namespace());
        ensure!(list.members.keys().all(|name| running.contains(name)), "only {running:?} run");
        Ok(())
    }

    pub(super) async fn pause_members(&self, victims: Victims, span: Duration) -> Result<Carried> {
        let processes = signalled(self.processes(victims), Signal::STOP);
        tokio::time::sleep(span).await;
        processes.iter().for_each(processes::thaw);
        Ok(done_to(processes.iter().map(EtcdProcess::member)))
    }

    pub(super) async fn cut_member(&self, victims: Victims, way: Way, span: Duration) -> Result<Carried> {
        let places = self.book.places();
        let names = self.victims(victims);
        let Some((name, place)) = names.iter().find_map(|name| Some((name, places.get(name)?))) else {
            return Ok(Carried::Skipped("no member has an address".into()));
        };
        self.cut_pod(&place.node, &place.door.address, way, span).await?;
        Ok(Carried::Done(name.clone()))
    }

    /// A pod without network for a while.
    pub(super) async fn cut_pod(&self, node: &str, address: &str, way: Way, span: Duration) -> Result<()> {
        let node = self.lab.node_named(node)?.number();
        let pod: Ipv4Addr = address.parse().with_context(|| format!("{address} is no address of the local cluster"))?;
        let ends: &[PodEnd] = match way {
            Way::Both => &[PodEnd::Source, PodEnd::Destination],
            Way::In => &[PodEnd::Destination],
            Way::Out => &[PodEnd::Source],
        };
        let cut = async {
            for end in ends {
                self.lab.cut_pod(node, pod, *end).await?;
            }
            Ok::<(), LabError>(())
        };
        let without = Cut::Pod(address.to_owned());
        self.looks.cuts().begin(without.clone());
        let heal = async || {
            for end in ends {
                self.lab.heal_pod(node, pod, *end).await?;
            }
            self.looks.cuts().end(&without);
            Ok::<(), LabError>(())
        };
        during(span, cut, heal).await
    }
}

/// Those that the signal reached: one may have ended since it was listed.
fn signalled(processes: Vec<EtcdProcess>, signal: Signal) -> Vec<EtcdProcess> {
    let reached = processes.into_iter().filter(|process| processes::signal(process.pid, signal).is_ok());
    reached.collect()
}

fn done_to<'a>(names: impl Iterator<Item = &'a str>) -> Carried {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { Carried::Skipped("there is nobody to hit".into()) } else { Carried::Done(names.join(", ")) }
}
