//! Acts: the only writer. The ledger first, by compare-and-swap; then what every cluster has; then the plan's steps in
//! their order, each guarded where it is done, and those in a row that concern one member each at once for all these members.
//! The first surprise ends it: the next round observes again.

mod certify;
mod claims;
mod courier;
mod etcd;
mod furnish;
mod objects;
mod release;
mod steps;
mod taken;
mod urge;

use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use quorate_crds::{EtcdCluster, EtcdClusterStatus, Reason, names};
use quorate_etcd::{CallError, Pool, Refusal};
use quorate_statemachine::{Life, Phase, Plan, Step};
use serde_json::json;

pub use self::certify::Renewed;
pub use self::claims::Ungrown;
pub use self::courier::Courier;
pub use self::urge::Urged;
use super::observe::Observed;
use super::pki::{Duties, IssueError, Wallet};
use super::render;
use crate::api::{self, Kube};
use crate::metrics::Metrics;

/// Why a plan was not done as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The world is not as it was planned from, or etcd is not ready for a change: observe again.
    #[error("{0}")]
    Surprise(String),
    /// Kubernetes failed.
    #[error(transparent)]
    Kube(#[from] api::Error),
    /// A call to a member failed; whether it had its effect shows in the member list.
    #[error(transparent)]
    Etcd(#[from] CallError),
    /// What is asked for can't be rendered.
    #[error(transparent)]
    Render(#[from] render::RenderError),
    /// What is asked for can't be done before the user corrects something.
    #[error("{1}")]
    Refused(Reason, String),
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// This operator may not write any more.
    #[error("{0}")]
    Shut(&'static str),
}

impl Stop {
    /// Whether what Kubernetes was asked for may have been done all the same.
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Kube(error) => error.is_unanswered(),
            Self::Surprise(_)
            | Self::Etcd(_)
            | Self::Render(_)
            | Self::Refused(..)
            | Self::Issue(_)
            | Self::Shut(_) => false,
        }
    }

    /// Whether another look is all that it takes: no fault of anybody's.
    pub fn is_surprise(&self) -> bool {
        match self {
            // It would be refused again at once, till somebody does something about it.
            Self::Etcd(error) if matches!(error.refusal(), Some(Refusal::Forbidden | Refusal::Corrupt)) => false,
            // etcd refuses changes for some seconds after each start and election, and a call whose answer was lost
            // shows its effect in the next list.
            Self::Surprise(_) | Self::Etcd(_) => true,
            Self::Kube(error) => error.is_surprise(),
            Self::Render(_) | Self::Refused(..) | Self::Issue(_) | Self::Shut(_) => false,
        }
    }

    /// Of two, the one to be told: what passes by itself does not hide what somebody has to mend.
    fn or_graver(self, other: Self) -> Self {
        if self.is_surprise() { other } else { self }
    }

    /// Whether it says something of the one object that was to be written, so that others may well be written after it: the
    /// API server has answered, or was not even asked.
    pub fn is_of_one_object(&self) -> bool {
        match self {
            Self::Surprise(_) | Self::Render(_) | Self::Refused(..) | Self::Issue(_) => true,
            Self::Kube(error) => error.is_surprise() || error.refusal().is_some() || error.is_of_a_webhook(),
            Self::Etcd(_) | Self::Shut(_) => false,
        }
    }
}

/// What was done of a plan.
#[derive(Debug)]
pub struct Acted {
    /// The object as it was last written or read.
    pub cluster: Arc<EtcdCluster>,
    /// The status that was written along with the ledger.
    pub status_written: bool,
    /// The steps that were done.
    pub done: Vec<Step>,
    /// The certificates that were renewed.
    pub renewed: Vec<Renewed>,
    /// Why not all was.
    pub stop: Option<Stop>,
    /// What Kubernetes refused of that which no step needs, or failed at.
    pub refused: Option<Stop>,
}

/// Who acts.
#[derive(Clone)]
pub struct Actor {
    /// The Kubernetes API.
    pub kube: Kube,
    /// Connections to members.
    pub pool: Arc<Pool>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The agent that pods are given.
    pub agent: render::Agent,
    /// Who sends tickets to launchers; nobody does if no key could be made.
    pub courier: Option<Arc<Courier>>,
    /// The domain of the Kubernetes cluster, in certificates.
    pub domain: Arc<str>,
}

/// One plan being carried out.
struct Acting<'a> {
    actor: &'a Actor,
    observed: &'a Observed,
    cluster: render::Cluster<'a>,
    wallet: &'a Wallet,
    /// The object's version as it was last read or written in this round.
    version: Option<String>,
    /// What was renewed in this round, along with a step or not.
    renewed: Mutex<Vec<Renewed>>,
}

impl Actor {
    /// Carries out a plan. `status` is what the status will be; it is written here if the ledger has to be.
    pub async fn act(
        &self,
        observed: &Observed,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        wallet: &Wallet,
    ) -> Acted {
        let mut acted = Acted {
            cluster: observed.cluster.clone(),
            status_written: false,
            done: Vec::new(),
            renewed: Vec::new(),
            stop: None,
            refused: None,
        };
        if let Err(stop) = self.perform(observed, plan, status, ungrown, wallet, &mut acted).await {
            acted.stop = Some(stop);
        }
        acted
    }

    async fn perform(
        &self,
        observed: &Observed,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        wallet: &Wallet,
        acted: &mut Acted,
    ) -> Result<(), Stop> {
        let Some(cluster) = render::Cluster::of(&observed.cluster) else {
            return Err(Stop::Surprise("the object has no UID".into()));
        };
        let mut acting = Acting { actor: self, observed, cluster, wallet, version: None, renewed: Mutex::default() };
        if observed.world.wish.life == Life::Wanted {
            acting.hold_with_finalizer(acted).await?;
        }
        let result = match acting.may_start(plan) {
            Ok(()) => Box::pin(acting.carry_out(plan, status, ungrown, acted)).await,
            Err(refused) => both::<(), _>(Err(refused), Box::pin(acting.renew(plan)).await).map(drop),
        };
        acted.renewed = acting.renewed.into_inner().unwrap_or_else(PoisonError::into_inner);
        result
    }

    /// Writes the status of an object, if it is still the one that was observed.
    pub async fn write_status(
        &self,
        cluster: &EtcdCluster,
        status: &EtcdClusterStatus,
    ) -> Result<EtcdCluster, api::Error> {
        let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
        let written = EtcdCluster { status: Some(status.clone()), ..cluster.clone() };
        self.kube.replace_status(namespace, &written).await
    }
}

/// What came of two things, or of which of them somebody has to hear.
fn both<A, B>(one: Result<A, Stop>, other: Result<B, Stop>) -> Result<(A, B), Stop> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.or_graver(other)),
        (Err(stop), Ok(_)) | (Ok(_), Err(stop)) => Err(stop),
    }
}

impl Acting<'_> {
    /// Writes the ledger, furnishes, and then takes the steps and renews what is due beside them.
    async fn carry_out(
        &mut self,
        plan: &Plan,
        status: &EtcdClusterStatus,
        ungrown: &mut Ungrown,
        acted: &mut Acted,
    ) -> Result<(), Stop> {
        if plan.ledger.is_some() {
            acted.cluster = Arc::new(self.actor.write_status(&acted.cluster, status).await?);
            acted.status_written = true;
        }
        // What has failed is left as it is: it may be somebody else's.
        let (mut duties, mut prepared) = (Duties::default(), Ok(()));
        if self.observed.world.wish.life == Life::Wanted && plan.phase != Phase::Failed {
            duties = self.certificate_duties(plan).await?;
            let furnish = Box::pin(self.furnish(plan, ungrown));
            let (furnished, authorities) = tokio::join!(furnish, Box::pin(self.make_authorities(&duties)));
            prepared = furnished.map(|refused| acted.refused = refused).and(authorities);
        }
        self.version = acted.cluster.resource_version();
        // Certificates run out also where something in a Service's place keeps any step from being done.
        let steps = Box::pin(async {
            match prepared {
                Ok(()) => self.steps(&plan.steps, &mut acted.done).await,
                Err(stop) => Err(stop),
            }
        });
        let certify = Box::pin(self.certify(plan, &duties));
        let (steps, certified) = tokio::join!(steps, certify);
        both(steps, certified).map(drop)
    }

    /// Puts our finalizer on the object before anything is made for it.
    async fn hold_with_finalizer(&self, acted: &mut Acted) -> Result<(), Stop> {
        let metadata = &acted.cluster.metadata;
        let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|finalizer| finalizer == names::FINALIZER) {
            return Ok(());
        }
        finalizers.push(names::FINALIZER.into());
        let change = json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "finalizers": finalizers } });
        let held = self.actor.kube.merge::<EtcdCluster>(self.cluster.namespace, self.cluster.name, &change).await?;
        acted.cluster = Arc::new(held);
        Ok(())
    }
}

#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod furnish_tests;

#[cfg(test)]
mod tests {
    use quorate_etcd::Call;

    use super::*;

    #[test]
    fn what_passes_by_itself_does_not_hide_what_somebody_has_to_mend() {
        let passes = || Stop::Surprise("it is still being deleted".into());
        let stays = || Stop::Refused(Reason::ObjectRefused, "quota".into());
        for (one, other) in [(passes(), stays()), (stays(), passes())] {
            let told = both::<(), ()>(Err(one), Err(other)).unwrap_err();
            assert_eq!(told.to_string(), stays().to_string());
        }
        assert!(both::<(), _>(Err(passes()), Ok(1)).is_err_and(|stop| stop.is_surprise()));
        assert!(both::<_, ()>(Ok(1), Err(passes())).is_err_and(|stop| stop.is_surprise()));
        assert_eq!(both(Ok(1), Ok(2)).ok(), Some((1, 2)));
    }

    #[test]
    fn what_etcd_refuses_till_somebody_acts_is_not_asked_again_at_once() {
        let refused =
            |refusal| Stop::Etcd(CallError::Refused { call: Call::AddLearner, refusal, message: "no".into() });
        for (refusal, at_once) in [
            (Refusal::Forbidden, false),
            (Refusal::Corrupt, false),
            (Refusal::UnhealthyCluster, true),
            (Refusal::LearnerNotReady, true),
            (Refusal::NotLeader, true),
        ] {
            assert_eq!(refused(refusal).is_surprise(), at_once, "{refusal:?}");
        }
    }
}
