//! One EtcdCluster, one round: observe, plan, act, report. The round reads from top to bottom; each step has a module of
//! its own, and only `act` (and the status at the end) writes.

mod act;
pub mod controller;
mod ledger;
mod memo;
mod memos;
mod observe;
mod pace;
mod pki;
pub mod render;
mod report;

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use quorate_crds::{EtcdCluster, EtcdClusterStatus, Reason};
use quorate_statemachine::{LookAgain, Plan, Step, plan};

use self::act::{Acted, Actor, Stop};
use self::memo::Memo;
use self::memos::Memos;
use self::observe::cache::Key;
use self::observe::members::Earlier;
use self::observe::{Before, Observed, Observer};
use self::pki::Wallet;
use crate::events::Teller;
use crate::metrics::Metrics;
use crate::telemetry::chain;
use crate::{api, guard};

/// Why a round failed. The next one comes after a pause that grows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster could not be observed.
    #[error("failed to observe the cluster")]
    Observe(#[source] api::Error),
    /// The plan could not be carried out.
    #[error("failed to act")]
    Act(#[source] Stop),
    /// The status could not be written.
    #[error("failed to report")]
    Report(#[source] api::Error),
    /// The round ended in a panic.
    #[error(transparent)]
    Panic(#[from] guard::Panic),
}

/// Drives clusters. One for all of them; between two rounds only [`Memo`]s are kept, and none of them is needed.
pub struct Driver {
    observer: Observer,
    actor: Actor,
    teller: Teller,
    metrics: Arc<Metrics>,
    memos: Memos,
}

impl Driver {
    /// A driver that has not seen any cluster yet.
    fn new(observer: Observer, actor: Actor, teller: Teller, metrics: Arc<Metrics>) -> Self {
        Self { observer, actor, teller, metrics, memos: Memos::default() }
    }

    /// Whether this operator may act at all.
    fn may_act(&self) -> bool {
        self.actor.kube.writes().open()
    }

    /// One round for one cluster, as the watch shows it. Says when to look again if nothing happens before.
    async fn round(&self, cluster: Arc<EtcdCluster>) -> Result<Duration, Error> {
        let started = Instant::now();
        let key = observe::key(&cluster);
        if is_let_go(&cluster) {
            self.forget(&key);
            return Ok(pace::pause(LookAgain::AtRest, Duration::ZERO));
        }
        let mut memo = self.memos.begin(&key, &cluster);
        let result = Box::pin(self.drive(&mut memo, cluster.clone())).await;
        memo.wallet.rest();
        if let Err(Error::Observe(error)) = &result
            && let Some(words) = error.told_refusal()
        {
            self.tell_unseen(&mut memo, cluster, words).await;
        }
        self.metrics.reconciled(if result.is_ok() { "ok" } else { "error" }, started.elapsed());
        let helpless = memo.helpless.lasts();
        memo.failures = if result.is_ok() { 0 } else { memo.failures.saturating_add(1) };
        if !self.memos.end(&key, memo) {
            self.forget(&key);
        }
        result.map(|look_again| pace::pause(look_again, helpless))
    }

    /// Kubernetes does not show what a round looks at, for want of a right most often. The conditions say so, and all else of the
    /// status stays as it was seen last: until somebody helps nothing is done for the cluster.
    async fn tell_unseen(&self, memo: &mut Memo, cluster: Arc<EtcdCluster>, words: String) {
        let cluster = memo.newest(cluster);
        let mut status = cluster.status.clone().unwrap_or_default();
        let refusal = (Reason::ObjectRefused, words);
        stall(&cluster, &mut status, &refusal);
        memo.was_refused(&cluster, Some(refusal));
        self.metrics.stalled(&observe::key(&cluster).to_string(), true);
        if cluster.status.as_ref() == Some(&status) {
            return;
        }
        match self.actor.write_status(&cluster, &status).await {
            Ok(written) => memo.wrote(&cluster, &Arc::new(written)),
            Err(error) => {
                tracing::warn!(cluster = %cluster.name_any(), error = %chain(&error), "nobody is told what can't be seen");
            }
        }
    }

    /// Observe, plan, act, report.
    async fn drive(&self, memo: &mut Memo, cluster: Arc<EtcdCluster>) -> Result<LookAgain, Error> {
        let cluster = memo.newest(cluster);
        if memo.awaits_who_goes(self.observer.shows_one_that_goes(&cluster))
            || memo.awaits_who_ended(self.observer.shows_one_that_ended(&cluster))
        {
            return Ok(LookAgain::Soon);
        }
        let started = Instant::now();
        memo.forget_what_is_old(self.actor.kube.writes().term());
        let before = Before { archives: &memo.archives, proofs: &memo.proofs, endpoints: &memo.endpoints };
        let stands = mem::take(&mut memo.left_voters_alone);
        let earlier = Earlier { seen: &memo.seen, leader: memo.leader, stands };
        let glanced = self.observer.glance(cluster, earlier, before, &memo.wallet).await;
        let glanced = glanced.map_err(Error::Observe)?;
        tracing::trace!(cluster = %glanced.cluster.name_any(), took = ?started.elapsed(), "has glanced");
        let Some((observed, mut plan)) = self.decide(glanced, &memo.wallet).await? else {
            return Ok(LookAgain::AtRest);
        };
        memo.leave_out_labels(&observed, &mut plan);
        memo.recall_alarm(self.actor.kube.writes().term(), &observed, &mut plan);
        memo.saw(&observed.said.seen, self.actor.kube.writes().term());
        memo.archives.clone_from(&observed.archives);
        memo.proofs.clone_from(&observed.proofs);
        memo.endpoints.clone_from(&observed.endpoints);
        memo.leader = observed.said.leader().map(|(serial, _)| serial).or(memo.leader);
        if memo.is_moment_of_silence(&observed, &plan) {
            return Ok(LookAgain::Soon);
        }
        let mut status = report::status(&observed, &plan, Timestamp::now());
        let mut with_ledger = status.clone();
        if let Some(refusal) = &memo.refused(&observed.cluster) {
            // It may well be refused again in this round: what is written before that does not take it back for a moment.
            stall(&observed.cluster, &mut with_ledger, refusal);
        }
        let act = self.actor.act(&observed, &plan, &with_ledger, &mut memo.ungrown, &memo.wallet);
        let (acted, ()) = tokio::join!(Box::pin(act), Box::pin(self.actor.urge(&observed, &mut memo.urged)));
        memo.labelled(&observed, &acted.done);
        let look_again = self.report(memo, &observed, &plan, &mut status, &acted).await?;
        memo.left_voters_alone = acted.stop.is_none() && plan.steps.iter().all(Step::leaves_voters_alone);
        memo.helpless.take(&plan);
        if !acted.done.is_empty() {
            // What is refused for one member in every round is no reason to be slow with the others.
            memo.failures = 0;
        }
        let moved = acted.status_written || !acted.done.is_empty();
        match acted.stop {
            None => match acted.refused.filter(|stop| refused(stop).is_none()) {
                None => Ok(memo.without_haste(look_again, moved)),
                Some(failed) => {
                    let error = chain(&failed);
                    tracing::warn!(cluster = %observed.cluster.name_any(), error, "what no step needs is tried again");
                    Ok(memo.without_haste(look_again.min(LookAgain::Later), moved))
                }
            },
            Some(stop) if stop.is_surprise() => {
                tracing::debug!(cluster = %observed.cluster.name_any(), stop = %chain(&stop), "observes again");
                Ok(memo.without_haste(LookAgain::Soon, moved))
            }
            Some(stop) => Err(Error::Act(stop)),
        }
    }

    /// Plans from the watches; and again from quorum reads, if the first plan is one that an old picture could lead
    /// astray. `None`: the object is no more.
    async fn decide(&self, glanced: Observed, wallet: &Wallet) -> Result<Option<(Observed, Plan)>, Error> {
        let first = plan(&glanced.world);
        if !first.needs_fresh_look() {
            return Ok(Some((glanced, first)));
        }
        let stared = Box::pin(self.observer.stare(&glanced, wallet)).await;
        let Some(observed) = stared.map_err(Error::Observe)? else { return Ok(None) };
        let plan = plan(&observed.world);
        tracing::debug!(cluster = %observed.cluster.name_any(), phase = ?plan.phase, steps = ?plan.steps, "plans");
        Ok(Some((observed, plan)))
    }

    /// Writes the status if it differs, tells what has turned, and takes the time.
    async fn report(
        &self,
        memo: &mut Memo,
        observed: &Observed,
        plan: &Plan,
        status: &mut EtcdClusterStatus,
        acted: &Acted,
    ) -> Result<LookAgain, Error> {
        let before = memo.refused(&observed.cluster);
        // A surprise says nothing of what was refused in the same round; nor does a round that was cut short of what was
        // refused in the one before.
        let cut_short = acted.stop.is_some() || acted.refused.is_some();
        let refusal = acted.stop.iter().chain(&acted.refused).find_map(refused);
        let refusal = refusal.or_else(|| before.clone().filter(|_| cut_short));
        // What was written along with the ledger was made before anything could be refused, or done after all.
        let overtaken = acted.status_written && refusal != before;
        if let Some(refusal) = &refusal {
            stall(&observed.cluster, status, refusal);
        }
        memo.was_refused(&observed.cluster, refusal);
        memo.wrote(&observed.cluster, &acted.cluster);
        let released = acted.done.contains(&Step::ReleaseFinalizer);
        let differs = !acted.status_written && observed.cluster.status.as_ref() != Some(status);
        let due = !released && (differs || overtaken);
        let mut written = acted.status_written;
        if due {
            match self.actor.write_status(&acted.cluster, status).await {
                Ok(cluster) => {
                    memo.wrote(&acted.cluster, &Arc::new(cluster));
                    written = true;
                }
                Err(error) => {
                    // What was done is told now or never. So is what has turned, if it may have been written all the same,
                    // just now or with the ledger: then the next round finds it so.
                    let may_be = plan.ledger.is_some() && acted.stop.as_ref().is_some_and(Stop::is_unanswered);
                    let with_ledger = acted.status_written || may_be;
                    self.tell(observed, plan, status, acted, with_ledger || error.is_unanswered());
                    let is_passing = error.is_surprise() || error.is_shut();
                    return if is_passing { Ok(LookAgain::Soon) } else { Err(Error::Report(error)) };
                }
            }
        }
        if released {
            memo.is_over = true;
            self.tell(observed, plan, status, acted, written);
            return Ok(plan.look_again);
        }
        memo.take_time(observed, plan, &self.metrics);
        let phase = report::phase(plan.phase);
        let key = observe::key(&observed.cluster).to_string();
        self.metrics.phase(&key, Some(phase.as_str()));
        self.metrics.stalled(&key, report::conditions::waits_for_user(&status.conditions));
        self.metrics.certificates_invalid(&key, report::conditions::certificates_invalid(&status.conditions));
        self.metrics.certificates(&key, observed.tls.certificates.until());
        self.metrics.archive(&key, report::archive::of_metrics(observed, status));
        self.tell(observed, plan, status, acted, written);
        Ok(report::archive::look_again(observed, status, plan.look_again))
    }

    /// Tells what was done, and what has turned if that is `written`.
    fn tell(&self, observed: &Observed, plan: &Plan, status: &EtcdClusterStatus, acted: &Acted, written: bool) {
        let mut news = report::events::of_steps(&observed.cluster, &acted.done);
        news.extend(report::events::of_renewals(&acted.renewed, Timestamp::now()));
        if written {
            news.extend(report::events::of_turns(observed, plan, status));
        }
        self.teller.tell(self.actor.kube.writes(), observed.cluster.object_ref(&()), news);
    }

    /// How long to wait after rounds that failed.
    fn pause_after_failure(&self, key: &Key) -> Duration {
        pace::pause_after_failures(self.memos.failures(key))
    }

    /// A cluster is no more.
    fn forget(&self, key: &Key) {
        self.memos.forget(key);
        self.observer.watched.places.forget(key);
        self.metrics.forget(&key.to_string());
    }

    /// These clusters are all that there are: the others went while nobody watched.
    fn forget_all_but(&self, listed: &HashSet<Key>) {
        for key in self.memos.others(listed) {
            self.forget(&key);
        }
    }
}

/// Whether all that was to be done for its deletion is done: somebody else's finalizer is what still holds it.
fn is_let_go(cluster: &EtcdCluster) -> bool {
    let held = cluster.finalizers().iter().any(|finalizer| finalizer == quorate_crds::names::FINALIZER);
    cluster.metadata.deletion_timestamp.is_some() && !held
}

/// Says in a status that this was refused.
fn stall(cluster: &EtcdCluster, status: &mut EtcdClusterStatus, (reason, words): &(Reason, String)) {
    let old = cluster.status.as_ref().map_or(&[][..], |old| &old.conditions);
    report::conditions::stall(&mut status.conditions, old, *reason, words, Timestamp::now());
}

/// What the user has to hear of a plan that could not be carried out: Kubernetes' own words, or what can't be rendered.
fn refused(stop: &Stop) -> Option<(Reason, String)> {
    match stop {
        Stop::Kube(error) => error.told_refusal().map(|words| (Reason::ObjectRefused, words)),
        Stop::Render(error) => Some((Reason::SpecInvalid, error.to_string())),
        Stop::Refused(reason, words) => Some((*reason, words.clone())),
        Stop::Etcd(error) if error.refusal() == Some(quorate_etcd::Refusal::Forbidden) => Some((
            Reason::EtcdForbids,
            format!(
                "etcd's users are turned on, and the operator may not do what it has to: {error}. See the section on etcd's \
                 users in docs/tls.md."
            ),
        )),
        Stop::Surprise(_) | Stop::Etcd(_) | Stop::Issue(_) | Stop::Shut(_) => None,
    }
}

#[cfg(test)]
mod release_tests;
#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ticket_tests;
#[cfg(test)]
mod times_tests;
#[cfg(test)]
mod tls_tests;
