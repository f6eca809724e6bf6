//! What is remembered of one cluster's certificates between two rounds: until when each Secret is right, and what the
//! operator itself shows. All of it can be lost without harm. At rest no private key is kept but the operator's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use quorate_crds::{TlsSecrets, names};
use quorate_etcd::{Access, Credentials, CredentialsError, Pem};
use quorate_statemachine::Serial;
use tokio::time::Instant;

use super::{
    Authority, Certificates, Fault, Faults, OwnSecrets, Pair, Realm, Span, Terms, is_strange, judge_client,
    judge_member, judge_own, read_authority, shuts_operator_out,
};
use crate::cluster::observe::facts::SecretFacts;
use crate::telemetry::chain;

/// By how much something may last longer than it should before it is issued anew: clocks differ.
const SLACK: SignedDuration = SignedDuration::from_mins(1);
/// How long the watch may take to show a Secret that was read or written: one that it does not show by then was deleted before a
/// round saw it there.
const SHOWN_BY: Duration = Duration::from_secs(10);

/// What is known of a cluster's certificates.
#[derive(Debug, Default)]
pub struct Wallet(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The Secrets were read at least once.
    read: bool,
    /// Members had pods then.
    in_use: bool,
    /// The names by which they were judged then, besides those that each cluster has.
    extra_names: Vec<String>,
    /// Each of them, by name.
    kept: BTreeMap<String, Kept>,
    /// Those that the watch showed when this round began.
    shown: BTreeSet<String>,
    /// Their contents, while something is to be issued.
    contents: Option<BTreeMap<String, Secret>>,
    /// Both authorities, likewise.
    keyring: Option<Arc<Keyring>>,
    /// An authority that is gone, can't be read or is another one, though there is something that it signed.
    lost: Option<(String, Fault)>,
    /// What the operator shows.
    operator: Option<Introduction>,
    /// The user's own Secrets, as they were last seen.
    own: Option<Own>,
}

/// What the operator shows to members.
#[derive(Debug)]
struct Introduction {
    credentials: Credentials,
    until: Timestamp,
    /// The authority that signed it, as PEM: one that was made anew is trusted by nobody who has the new one.
    authority: String,
}

/// The user's own Secrets.
#[derive(Debug)]
struct Own {
    looked: Instant,
    found: Certificates,
    /// What the operator shows of them, and whom it trusts.
    shown: Option<(Pair, String)>,
}

/// One Secret.
#[derive(Debug)]
struct Kept {
    /// Its UID.
    uid: Option<String>,
    /// Its version.
    version: String,
    /// Versions that we have replaced: the watch may show them yet.
    replaced: BTreeSet<String>,
    /// The watch has shown it.
    shown: bool,
    /// Since when it is known.
    since: Instant,
    /// How it was found.
    judged: Judged,
}

/// How a Secret was found.
#[derive(Debug)]
enum Judged {
    /// An authority that lasts until then.
    Authority(Timestamp),
    /// Right, for that time.
    Right(Span),
    /// It has to be issued anew.
    Wrong(Vec<Fault>),
    /// It can't be told, or it is nothing that is issued here: it is left as it is.
    Unjudged,
}

/// Both authorities of a cluster.
#[derive(Debug)]
pub struct Keyring {
    /// Between members.
    pub peer: Authority,
    /// Between members and clients.
    pub client: Authority,
}

/// What has to be issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// Authorities.
    pub authorities: Vec<Realm>,
    /// The Secret for applications.
    pub client: bool,
    /// Members' Secrets.
    pub members: BTreeSet<Serial>,
}

impl Duties {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let Self { authorities, client, members } = self;
        authorities.is_empty() && !client && members.is_empty()
    }
}

impl Wallet {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the Secrets have to be read: they never were, somebody else has changed one, other names are asked for, or
    /// something runs out; or an authority is not there, which is one thing while `members` have pods, and another while none
    /// has.
    pub fn must_read(
        &self,
        watched: &BTreeMap<String, SecretFacts>,
        members: &BTreeSet<Serial>,
        terms: &Terms<'_>,
        now: Timestamp,
    ) -> bool {
        let mut state = self.state();
        state.shown = watched.keys().cloned().collect();
        // There were members with pods and there are none any more, or the other way round.
        let turned = state.in_use == members.is_empty() && !state.missing(terms.cluster.name).is_empty();
        let renamed = state.extra_names != terms.cluster.spec.tls.extra_names;
        if !state.read || state.differs(watched) || turned || renamed {
            return true;
        }
        let client = Realm::Client.secret(terms.cluster.name);
        let operator = match &state.operator {
            Some(shown) => state.is_due(shown.until, &[Realm::Client], terms, now),
            None => state.kept.contains_key(&client),
        };
        let wrong = state.kept.iter().any(|(name, kept)| !state.is_right(name, kept, terms, now));
        state.contents.is_none() && state.lost.is_none() && (operator || wrong)
    }

    /// Takes the cluster's Secrets as they are in Kubernetes now, while these `members` have pods.
    pub fn take(&self, secrets: Vec<Secret>, members: &BTreeSet<Serial>, terms: &Terms<'_>, now: Timestamp) {
        let mut state = self.state();
        let in_use = !members.is_empty();
        let contents: BTreeMap<_, _> = secrets.into_iter().map(|secret| (secret.name_any(), secret)).collect();
        let (keyring, lost) = authorities(&contents, in_use, terms.cluster.name);
        (state.read, state.in_use, state.keyring, state.lost) = (true, in_use, keyring.map(Arc::new), lost);
        state.extra_names.clone_from(&terms.cluster.spec.tls.extra_names);
        let judged: BTreeMap<_, _> = contents
            .iter()
            .map(|(name, secret)| (name.clone(), judge(secret, state.keyring.as_deref(), terms, now)))
            .collect();
        state.kept = judged
            .into_iter()
            .map(|(name, judged)| {
                let (uid, version) = identity(&contents[&name]);
                let replaced = state.kept.remove(&name).map(|kept| kept.replaced).unwrap_or_default();
                let shown = state.shown.contains(&name);
                (name, Kept { uid, version, replaced, shown, since: Instant::now(), judged })
            })
            .collect();
        state.contents = Some(contents);
        state.introduce_operator(terms, now);
    }

    /// An authority was made, or both are there now.
    pub fn has_authorities(&self, keyring: Keyring, terms: &Terms<'_>, now: Timestamp) {
        let mut state = self.state();
        state.keyring = Some(Arc::new(keyring));
        state.introduce_operator(terms, now);
    }

    /// A Secret was written, with what can be used for that time.
    pub fn wrote(&self, secret: Secret, span: Span) {
        self.keep(secret, Judged::Right(span));
    }

    /// The Secret of an authority was written.
    pub fn wrote_authority(&self, secret: Secret, until: Timestamp) {
        self.keep(secret, Judged::Authority(until));
    }

    fn keep(&self, secret: Secret, judged: Judged) {
        let mut state = self.state();
        let name = secret.name_any();
        let (uid, version) = identity(&secret);
        let before = state.kept.remove(&name);
        let shown = before.as_ref().is_some_and(|kept| kept.shown);
        let mut replaced = BTreeSet::new();
        if let Some(before) = before {
            replaced = before.replaced;
            replaced.insert(before.version);
        }
        state.kept.insert(name.clone(), Kept { uid, version, replaced, shown, since: Instant::now(), judged });
        if let Some(contents) = &mut state.contents {
            contents.insert(name, secret);
        }
    }

    /// A Secret was deleted.
    pub fn dropped(&self, name: &str) {
        self.state().kept.remove(name);
    }

    /// What is there is not what was read: it is read again.
    pub fn forget(&self) {
        self.state().read = false;
    }

    /// What has to be issued so that these members can run.
    pub fn duties(&self, members: &BTreeSet<Serial>, terms: &Terms<'_>, now: Timestamp) -> Duties {
        let state = self.state();
        let cluster = terms.cluster.name;
        let right = |name: &str| state.kept.get(name).is_some_and(|kept| state.is_right(name, kept, terms, now));
        Duties {
            authorities: if state.lost.is_some() { Vec::new() } else { state.missing(cluster) },
            client: state.lost.is_none() && !right(&names::client_secret(cluster)),
            members: members.iter().copied().filter(|serial| !right(&terms.cluster.member(*serial))).collect(),
        }
    }

    /// The contents of the Secrets, if they are at hand.
    pub fn contents(&self) -> Option<BTreeMap<String, Secret>> {
        self.state().contents.clone()
    }

    /// Both authorities, if they are at hand.
    pub fn keyring(&self) -> Option<Arc<Keyring>> {
        self.state().keyring.clone()
    }

    /// The authority that is lost.
    pub fn lost(&self) -> Option<(String, Fault)> {
        self.state().lost.clone()
    }

    /// The UID of a Secret.
    pub fn uid(&self, name: &str) -> Option<String> {
        self.state().kept.get(name)?.uid.clone()
    }

    /// The names of the Secrets that are there.
    pub fn names(&self) -> Vec<String> {
        self.state().kept.keys().cloned().collect()
    }

    /// Lets go of everything secret that is not needed at rest.
    pub fn rest(&self) {
        let mut state = self.state();
        (state.contents, state.keyring) = (None, None);
    }

    /// What it takes to speak with the members.
    pub fn access(&self) -> Option<Access> {
        self.state().operator.as_ref().map(|shown| Access::tls(shown.credentials.clone()))
    }

    /// Whether the user's own Secrets have to be looked at: they were not for so long, or something was wrong with them.
    pub fn own_is_due(&self, interval: Duration) -> bool {
        self.state().own.as_ref().is_none_or(|own| match own.found {
            Certificates::Valid { .. } => own.looked.elapsed() >= interval,
            Certificates::Off | Certificates::Pending | Certificates::Lost { .. } | Certificates::Faulty(_) => true,
        })
    }

    /// Takes the user's own Secrets as they are in Kubernetes now.
    pub fn take_own(&self, own: &OwnSecrets, named: &TlsSecrets, terms: &Terms<'_>, now: Timestamp) {
        let mut state = self.state();
        let found = judge_own(own, named, terms, now);
        let before = state.own.take().and_then(|own| own.shown);
        // What members took till now they go on taking: what is put in its place and can't be used would only shut us out.
        let kept = before.clone().filter(|_| shuts_operator_out(&found, named));
        let shown = kept.or_else(|| own.operator().ok());
        if let Some((pair, trusted)) = shown.as_ref().filter(|shown| Some(*shown) != before.as_ref()) {
            state.show(terms, pair, trusted, Timestamp::MAX);
        }
        state.own = Some(Own { looked: Instant::now(), found, shown });
    }

    /// What the operator shows of the user's own Secrets.
    #[cfg(test)]
    pub fn shown_own(&self) -> Option<(Pair, String)> {
        self.state().own.as_ref().and_then(|own| own.shown.clone())
    }

    /// How the user's own certificates are.
    pub fn own_report(&self) -> Certificates {
        self.state().own.as_ref().map(|own| own.found.clone()).unwrap_or_default()
    }

    /// How the certificates are that these members use.
    pub fn report(&self, members: &BTreeSet<Serial>, terms: &Terms<'_>, now: Timestamp) -> Certificates {
        let state = self.state();
        if let Some((secret, fault)) = state.lost.clone() {
            return Certificates::Lost { secret, fault };
        }
        let cluster = terms.cluster.name;
        let fixed = [Realm::Peer.secret(cluster), Realm::Client.secret(cluster), names::client_secret(cluster)];
        let needed = fixed.into_iter().chain(members.iter().map(|serial| terms.cluster.member(*serial)));
        let mut faults = Faults::new();
        // It is renewed when half of its time is over: with a quarter left something keeps it from that. An authority is not
        // renewed, and what it signs gets shorter then.
        let of_authority = |until: Timestamp| until.duration_since(now) < terms.lifetime() / 4;
        let mut lasting = Vec::new();
        let mut pending = false;
        for name in needed {
            match state.kept.get(&name).map(|kept| &kept.judged) {
                Some(Judged::Authority(until)) => lasting.push((*until, name, of_authority(*until))),
                Some(Judged::Right(span)) => lasting.push((span.until, name, span.is_nearly_over(now))),
                Some(Judged::Wrong(found)) if found.iter().any(|fault| matches!(fault, Fault::Expired(_))) => {
                    faults.extend(found.iter().map(|fault| (name.clone(), fault.clone())));
                }
                // Put right in the same round.
                Some(Judged::Wrong(_) | Judged::Unjudged) | None => pending = true,
            }
        }
        match lasting.into_iter().min_by_key(|(until, _, _)| *until) {
            _ if !faults.is_empty() => Certificates::Faulty(faults),
            // That another one is still being issued must not hide that this one runs out.
            Some((until, secret, expiring)) if !pending || expiring => Certificates::Valid { secret, until, expiring },
            Some(_) | None => Certificates::Pending,
        }
    }
}

impl State {
    /// Whether the watch shows something that is neither what was read nor what we have replaced.
    fn differs(&mut self, watched: &BTreeMap<String, SecretFacts>) -> bool {
        let mut differs = watched.keys().any(|name| !self.kept.contains_key(name));
        for (name, kept) in &mut self.kept {
            match watched.get(name) {
                Some(seen) if seen.version == kept.version => {
                    kept.shown = true;
                    kept.replaced.clear();
                }
                Some(seen) => differs |= !kept.replaced.contains(&seen.version),
                None => differs |= kept.shown || kept.since.elapsed() > SHOWN_BY,
            }
        }
        differs
    }

    /// The authorities whose Secrets are not there.
    fn missing(&self, cluster: &str) -> Vec<Realm> {
        let is_missing = |realm: &Realm| !self.kept.contains_key(&realm.secret(cluster));
        Realm::ALL.into_iter().filter(is_missing).collect()
    }

    /// Whether what these authorities have signed, and lasts until then, is to be issued anew: that would gain half a lifetime, or
    /// it lasts too long.
    fn is_due(&self, until: Timestamp, signed_by: &[Realm], terms: &Terms<'_>, now: Timestamp) -> bool {
        let lifetime = terms.lifetime();
        let judged = |realm: &Realm| Some(&self.kept.get(&realm.secret(terms.cluster.name))?.judged);
        let authorities = signed_by.iter().filter_map(judged).filter_map(|judged| match judged {
            Judged::Authority(until) => Some(*until),
            Judged::Right(_) | Judged::Wrong(_) | Judged::Unjudged => None,
        });
        let best = authorities.fold(now + lifetime, Timestamp::min);
        best.duration_since(until) > lifetime / 2 || until.duration_since(best) > SLACK
    }

    /// Whether a Secret that is there can stay as it is.
    fn is_right(&self, name: &str, kept: &Kept, terms: &Terms<'_>, now: Timestamp) -> bool {
        let of_applications = name == names::client_secret(terms.cluster.name);
        let signed_by: &[Realm] = if of_applications { &[Realm::Client] } else { &Realm::ALL };
        match &kept.judged {
            Judged::Right(span) => !self.is_due(span.until, signed_by, terms, now),
            Judged::Wrong(_) => false,
            Judged::Authority(_) | Judged::Unjudged => true,
        }
    }

    /// Issues what the operator shows, if that is due.
    fn introduce_operator(&mut self, terms: &Terms<'_>, now: Timestamp) {
        let Some(keyring) = self.keyring.clone() else { return };
        let authority = keyring.client.trusted();
        let is_due = |shown: &Introduction| self.is_due(shown.until, &[Realm::Client], terms, now);
        let still_good = |shown: &Introduction| shown.authority == authority && !is_due(shown);
        if self.operator.as_ref().is_some_and(still_good) {
            return;
        }
        let pair = match keyring.client.issue(&terms.operator(), None, now) {
            Ok(pair) => pair,
            Err(error) => {
                tracing::warn!(cluster = terms.cluster.name, error = %chain(&error), "no certificate for the operator");
                return;
            }
        };
        let until = keyring.client.span(terms.lifetime(), now).until;
        self.show(terms, &pair, authority, until);
    }

    /// Shows this from now on, for whoever has its credentials already.
    fn show(&mut self, terms: &Terms<'_>, pair: &Pair, authority: &str, until: Timestamp) {
        let credentials = self.operator.as_ref().map(|shown| shown.credentials.clone());
        let authority = authority.to_owned();
        match credentials_of(credentials, pair, &authority) {
            Ok(credentials) => self.operator = Some(Introduction { credentials, until, authority }),
            Err(error) => tracing::warn!(cluster = terms.cluster.name, %error, "no credentials for the operator"),
        }
    }
}

fn identity(secret: &Secret) -> (Option<String>, String) {
    (secret.uid(), secret.resource_version().unwrap_or_default())
}

/// Credentials of this certificate: those that are there with the new one, or new ones.
fn credentials_of(before: Option<Credentials>, pair: &Pair, trusted: &str) -> Result<Credentials, CredentialsError> {
    let pem = Pem { certificate: &pair.certificate, key: &pair.key, trusted };
    match before {
        Some(credentials) => credentials.replace(pem).map(|()| credentials),
        None => Credentials::new(pem),
    }
}

/// Both authorities, or the one that is lost; neither while they have not been made. A member has no pod before it has
/// certificates, so with pods there were authorities, whatever became of all the Secrets: they are never made a second time
/// under members that run.
fn authorities(
    contents: &BTreeMap<String, Secret>,
    in_use: bool,
    cluster: &str,
) -> (Option<Keyring>, Option<(String, Fault)>) {
    let issued = issued(contents, in_use, cluster);
    let read = |realm: Realm| {
        let name = realm.secret(cluster);
        match contents.get(&name).map(read_authority) {
            Some(Ok(found)) if is_strange(&found, realm, issued.iter().copied()) => Err((name, Fault::Strange)),
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(fault)) => Err((name, fault)),
            None if in_use || !issued.is_empty() => Err((name, Fault::SecretMissing)),
            None => Ok(None),
        }
    };
    match (read(Realm::Peer), read(Realm::Client)) {
        (Ok(Some(peer)), Ok(Some(client))) => (Some(Keyring { peer, client }), None),
        (Ok(_), Ok(_)) => (None, None),
        (Err(lost), _) | (_, Err(lost)) => (None, Some(lost)),
    }
}

/// What tells that there were authorities, and which: members' Secrets. The one for applications does only while members have
/// pods: before that it may be what is left of an authority that was deleted and is made anew.
fn issued<'s>(contents: &'s BTreeMap<String, Secret>, in_use: bool, cluster: &str) -> Vec<&'s Secret> {
    let of_applications = names::client_secret(cluster);
    let tells = |name: &str| names::serial(cluster, name).is_some() || (in_use && name == of_applications);
    contents.iter().filter(|(name, _)| tells(name)).map(|(_, secret)| secret).collect()
}

fn judge(secret: &Secret, keyring: Option<&Keyring>, terms: &Terms<'_>, now: Timestamp) -> Judged {
    let (cluster, name) = (terms.cluster.name, secret.name_any());
    let of = |judged: Result<Span, Vec<Fault>>| judged.map_or_else(Judged::Wrong, Judged::Right);
    if Realm::ALL.iter().any(|realm| name == realm.secret(cluster)) {
        return read_authority(secret).map_or(Judged::Unjudged, |authority| Judged::Authority(authority.until()));
    }
    // Without its authority nothing can be issued anew, so what is there is left as it is.
    let Some(Keyring { peer, client }) = keyring else { return Judged::Unjudged };
    match names::serial(cluster, &name) {
        Some(serial) => of(judge_member(secret, terms, Serial(serial), peer, client, now)),
        None if name == names::client_secret(cluster) => of(judge_client(secret, terms, client, now)),
        None => Judged::Unjudged,
    }
}

#[cfg(test)]
#[path = "wallet_tests.rs"]
mod tests;
