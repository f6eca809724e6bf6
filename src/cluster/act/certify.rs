//! Issues certificates and writes them into Secrets: an authority once, by a creation that fails if it is there; all else
//! when it is missing, damaged or half its time is over, guarded by the version that was read. Members read them again at
//! each handshake, so nothing is restarted.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Preconditions;
use quorate_crds::{TlsMode, names};
use quorate_statemachine::{Life, Phase, Plan, Serial, Step};
use serde_json::json;

use super::taken::{of_a_stranger, of_what_goes};
use super::{Acting, Stop};
use crate::cluster::observe::certificates;
use crate::cluster::pki::{
    Authority, Certificates, Duties, Fault, Keyring, MemberKeys, Realm, Span, Terms, authority_secret, client_secret,
    kept_key, member_secret,
};
use crate::cluster::render::TlsFiles;
use crate::cluster::report;
use crate::ownership::{Holder, holder, is_owned};

/// A certificate that was issued anew in place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Its Secret.
    pub secret: String,
    /// Until when it is valid.
    pub until: Timestamp,
}

impl Acting<'_> {
    fn terms(&self) -> Terms<'_> {
        Terms { cluster: self.cluster, domain: &self.actor.domain }
    }

    fn issues(&self) -> bool {
        self.observed.cluster.spec.tls.mode == TlsMode::Issued && self.observed.world.wish.life == Life::Wanted
    }

    /// What has to be issued for this plan; the Secrets are at hand then.
    pub(super) async fn certificate_duties(&self, plan: &Plan) -> Result<Duties, Stop> {
        if !self.issues() {
            return Ok(Duties::default());
        }
        let with_pods: BTreeSet<Serial> = self.observed.pods.keys().copied().collect();
        let mut members = with_pods.clone();
        members.extend(report::ledger_of(self.observed, plan).into_iter().flat_map(|l| l.members.keys()));
        members.extend(made_by(plan));
        let duties = |acting: &Self| acting.wallet.duties(&members, &acting.terms(), Timestamp::now());
        let due = duties(self);
        // With pods there were authorities: the Secrets were taken when no watch had shown the pods yet.
        let taken_too_early = !due.authorities.is_empty() && !with_pods.is_empty();
        if !taken_too_early && (due.is_empty() || self.wallet.contents().is_some()) {
            return Ok(due);
        }
        let secrets = certificates::secrets(&self.actor.kube, &self.observed.cluster).await?;
        self.wallet.take(secrets, &with_pods, &self.terms(), Timestamp::now());
        Ok(duties(self))
    }

    /// Demands that with certificates that can't be used no cluster is begun, and no voter stopped that serves: it has read them
    /// while they could be, and would not come up again.
    pub(super) fn may_start(&self, plan: &Plan) -> Result<(), Stop> {
        // As it was written before this plan: one that seeds says so in the very ledger that it brings.
        let begun = self.observed.world.memory.may_have_begun();
        let seeds = || plan.steps.iter().any(|step| matches!(step, Step::IssueTicket { .. } | Step::CreatePod { .. }));
        let stopped: Vec<Serial> = plan.steps.iter().filter_map(|step| self.stops_who_serves(step)).collect();
        if (!begun && seeds()) || !stopped.is_empty() {
            self.certificates_fit()?;
        }
        stopped.into_iter().try_for_each(|serial| self.comes_up_again(serial))
    }

    /// The voter that serves and is stopped by this step.
    fn stops_who_serves(&self, step: &Step) -> Option<Serial> {
        let (Step::SwitchRelease { serial, .. } | Step::DeletePod { serial, .. }) = step else { return None };
        (self.is_to_go_on() && self.is_voter(*serial) && self.alive(*serial).is_some()).then_some(*serial)
    }

    /// Demands that who is stopped has its certificates, where nobody could issue others.
    fn comes_up_again(&self, serial: Serial) -> Result<(), Stop> {
        match &self.observed.tls.certificates {
            Certificates::Lost { .. } if self.wallet.uid(&self.cluster.member(serial)).is_none() => {
                Err(self.refused_for_certificates())
            }
            Certificates::Lost { .. }
            | Certificates::Off
            | Certificates::Pending
            | Certificates::Faulty(_)
            | Certificates::Valid { .. } => Ok(()),
        }
    }

    /// Demands that whoever is started now can use its certificates.
    pub(super) fn certificates_fit(&self) -> Result<(), Stop> {
        match &self.observed.tls.certificates {
            Certificates::Faulty(_) => Err(self.refused_for_certificates()),
            Certificates::Off | Certificates::Pending | Certificates::Lost { .. } | Certificates::Valid { .. } => {
                Ok(())
            }
        }
    }

    fn refused_for_certificates(&self) -> Stop {
        let told = report::sentences::of_certificates(&self.observed.tls.certificates);
        Stop::Refused(told.reason, told.sentence)
    }

    /// Makes the authorities that are missing. Nobody else's is ever overwritten.
    pub(super) async fn make_authorities(&self, duties: &Duties) -> Result<(), Stop> {
        if duties.authorities.is_empty() {
            return Ok(());
        }
        let now = Timestamp::now();
        let (peer, client) =
            tokio::join!(self.authority(Realm::Peer, duties, now), self.authority(Realm::Client, duties, now));
        self.wallet.has_authorities(Keyring { peer: peer?, client: client? }, &self.terms(), now);
        Ok(())
    }

    async fn authority(&self, realm: Realm, duties: &Duties, now: Timestamp) -> Result<Authority, Stop> {
        let name = realm.secret(self.cluster.name);
        if !duties.authorities.contains(&realm) {
            let contents = self.wallet.contents().unwrap_or_default();
            let read = contents.get(&name).map(crate::cluster::pki::read_authority);
            return read.and_then(Result::ok).ok_or_else(|| Stop::Surprise(format!("Secret {name} can't be read")));
        }
        let authority = Authority::make(&name, now)?;
        let made = self.create_secret(&authority_secret(&self.cluster, realm, &authority)).await?;
        self.wallet.wrote_authority(made, authority.until());
        Ok(authority)
    }

    /// Renews what is due while nothing may be started or stopped, which may be what ends that.
    pub(super) async fn renew(&self, plan: &Plan) -> Result<(), Stop> {
        let only = Plan { ledger: None, steps: Vec::new(), ..plan.clone() };
        let duties = self.certificate_duties(&only).await?;
        self.certify(&only, &duties).await
    }

    /// Issues what is due and not done along with a step, and takes away what nobody uses any more. One Secret that can't be
    /// written keeps none of the others from being renewed: it is told in the end.
    pub(super) async fn certify(&self, plan: &Plan, duties: &Duties) -> Result<(), Stop> {
        if !self.issues() {
            return Ok(());
        }
        let mut left_out = None;
        // What has failed is left as it is.
        if plan.phase != Phase::Failed {
            unless_left_out(self.look_for_lost().await, &mut left_out)?;
        }
        if duties.client
            && let Some(keyring) = self.wallet.keyring()
        {
            unless_left_out(self.certify_client(&keyring).await, &mut left_out)?;
        }
        let along: BTreeSet<_> = made_by(plan).collect();
        for serial in duties.members.difference(&along) {
            unless_left_out(self.certify_member(*serial).await, &mut left_out)?;
        }
        unless_left_out(self.drop_departed(plan).await, &mut left_out)?;
        left_out.map_or(Ok(()), Err)
    }

    /// Looks for an authority that no list shows: it may only have lost its labels.
    async fn look_for_lost(&self) -> Result<(), Stop> {
        let Some((name, Fault::SecretMissing)) = self.wallet.lost() else { return Ok(()) };
        let found = self.actor.kube.get::<Secret>(self.cluster.namespace, &name).await?;
        match found.filter(|secret| is_owned(secret, &*self.observed.cluster)) {
            Some(secret) => {
                self.wallet.forget();
                Err(self.find_again(&secret).await?)
            }
            None => Ok(()),
        }
    }

    async fn certify_client(&self, keyring: &Keyring) -> Result<(), Stop> {
        let (terms, now) = (self.terms(), Timestamp::now());
        let contents = self.wallet.contents().unwrap_or_default();
        let live = contents.get(&names::client_secret(self.cluster.name));
        let pair = keyring.client.issue(&terms.client(), kept_key(live, "tls.key").as_deref(), now)?;
        let secret = client_secret(&self.cluster, &pair, keyring.client.trusted());
        self.put_secret(secret, live, keyring.client.span(terms.lifetime(), now)).await
    }

    /// Makes sure that a member's Secret is there and right: a pod whose Secret is missing is not started by the kubelet.
    pub(super) async fn certify_member(&self, serial: Serial) -> Result<(), Stop> {
        let (terms, now) = (self.terms(), Timestamp::now());
        if !self.issues() || !self.wallet.duties(&BTreeSet::from([serial]), &terms, now).members.contains(&serial) {
            return Ok(());
        }
        let Some(keyring) = self.wallet.keyring() else { return Err(self.no_authority()) };
        let contents = self.wallet.contents().unwrap_or_default();
        let live = contents.get(&self.cluster.member(serial));
        let Keyring { peer, client } = Arc::as_ref(&keyring);
        let keys = MemberKeys {
            peer: peer.issue(&terms.peer(serial), kept_key(live, TlsFiles::PEER_KEY).as_deref(), now)?,
            server: client.issue(&terms.server(serial), kept_key(live, TlsFiles::SERVER_KEY).as_deref(), now)?,
        };
        let secret = member_secret(&self.cluster, serial, &keys, peer.trusted(), client.trusted());
        let span = peer.span(terms.lifetime(), now).min(client.span(terms.lifetime(), now));
        self.put_secret(secret, live, span).await
    }

    fn no_authority(&self) -> Stop {
        match self.wallet.lost() {
            Some((secret, fault)) => {
                let told = report::sentences::of_certificates(&Certificates::Lost { secret, fault });
                Stop::Refused(told.reason, told.sentence)
            }
            None => Stop::Surprise("the authorities are not at hand".into()),
        }
    }

    /// Creates a Secret, or exchanges what is in it if it is still the one that was read, which is noted.
    async fn put_secret(&self, secret: Secret, live: Option<&Secret>, span: Span) -> Result<(), Stop> {
        let name = secret.name_any();
        let Some(live) = live else {
            let made = self.create_secret(&secret).await?;
            self.wallet.wrote(made, span);
            return Ok(());
        };
        let until = span.until;
        let change = json!({
            "metadata": { "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version,
                "labels": secret.metadata.labels },
            "data": secret.data,
        });
        let written = self.actor.kube.merge::<Secret>(self.cluster.namespace, &name, &change).await;
        let written = written.inspect_err(|_| self.wallet.forget())?;
        tracing::info!(cluster = %self.cluster.name, secret = name, %until, "renewed");
        self.wallet.wrote(written, span);
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.push(Renewed { secret: name, until });
        Ok(())
    }

    async fn create_secret(&self, secret: &Secret) -> Result<Secret, Stop> {
        let made = self.actor.kube.create(self.cluster.namespace, secret).await;
        match made {
            Ok(made) => Ok(made),
            Err(error) if error.is_surprise() => {
                self.wallet.forget();
                Err(Box::pin(self.who_has(&secret.name_any())).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Why a name is taken: by what we did not know of, by an earlier cluster that is being collected, or by a stranger. Ours
    /// is found the next time.
    async fn who_has(&self, name: &str) -> Result<Stop, Stop> {
        let found = self.actor.kube.get::<Secret>(self.cluster.namespace, name).await?;
        let Some(found) = found else { return Ok(not_known_of(name)) };
        match holder(&found, &*self.observed.cluster) {
            Holder::Us => self.find_again(&found).await,
            Holder::Nobody => Ok(of_what_goes(&found, Timestamp::now())),
            Holder::Stranger => Ok(of_a_stranger(&found)),
        }
    }

    /// Gives a Secret of ours the labels back by which lists and watches find it, if it has lost one. What it holds is left
    /// as it is, to be judged when it is found.
    async fn find_again(&self, secret: &Secret) -> Result<Stop, Stop> {
        let (name, labels) = (secret.name_any(), self.cluster.labels());
        if labels.iter().all(|(key, value)| secret.labels().get(key) == Some(value)) {
            return Ok(not_known_of(&name));
        }
        let still = json!({ "uid": secret.metadata.uid, "resourceVersion": secret.metadata.resource_version });
        self.label_again::<Secret>(&name, still).await?;
        Ok(Stop::Surprise(format!("Secret {name} had lost its labels")))
    }

    /// Deletes the Secrets of members that are gone for good.
    async fn drop_departed(&self, plan: &Plan) -> Result<(), Stop> {
        let Some(ledger) = report::ledger_of(self.observed, plan) else { return Ok(()) };
        for name in self.wallet.names() {
            let Some(serial) = names::serial(self.cluster.name, &name).map(Serial) else { continue };
            let used = ledger.members.contains_key(&serial) || self.observed.pods.contains_key(&serial);
            if used || serial >= ledger.next_serial {
                continue;
            }
            let still = Preconditions { uid: self.wallet.uid(&name), resource_version: None };
            match self.actor.kube.delete::<Secret>(self.cluster.namespace, &name, still).await {
                Ok(()) => self.wallet.dropped(&name),
                Err(error) if error.is_not_found() => self.wallet.dropped(&name),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn not_known_of(name: &str) -> Stop {
    Stop::Surprise(format!("Secret {name} was not known of"))
}

/// What came of one Secret of several. The first that could not be written is kept, to be told when the others are done; what
/// concerns all of them ends it.
fn unless_left_out(result: Result<(), Stop>, left_out: &mut Option<Stop>) -> Result<(), Stop> {
    match result {
        Ok(()) => Ok(()),
        Err(stop) if stop.is_of_one_object() => {
            left_out.get_or_insert(stop);
            Ok(())
        }
        Err(stop) => Err(stop),
    }
}

/// The members for whom a plan makes a pod.
fn made_by(plan: &Plan) -> impl Iterator<Item = Serial> {
    plan.steps.iter().filter_map(|step| {
        let Step::CreatePod { serial, .. } = step else { return None };
        Some(*serial)
    })
}
