//! A ticket sent straight to a waiting launcher, ahead of the annotation that carries the same text: the signed envelope,
//! for the operator that signs and the launcher that verifies. Whether one is taken is `launch::inbox`'s question.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, ED25519_PUBLIC_KEY_LEN, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};

use crate::ticket::PodUid;

/// Where the launcher takes it: `POST`, on the port of its report.
pub const PATH: &str = "/ticket";

/// The longest envelope that is read, in bytes. A real one has some 3 KiB.
pub const MAX_BYTES: usize = 64 * 1024;

/// What went wrong with an envelope or a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// A key that is not 32 bytes in hexadecimal.
    #[error("failed to read the public key: it must be {ED25519_PUBLIC_KEY_LEN} bytes in hexadecimal")]
    PublicKey,
    /// A private key that can't be made.
    #[error("failed to make the signing key")]
    SigningKey,
    /// A signature that is not hexadecimal.
    #[error("the signature is not hexadecimal")]
    Form,
    /// Meant for another pod.
    #[error("the ticket is for another pod")]
    OtherPod,
    /// Not signed by the key's owner, or not this text for this pod.
    #[error("the signature does not fit")]
    Signature,
}

/// The operator's half: signs tickets. Its `Debug` form shows the public half only.
#[derive(Debug)]
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// A new key.
    pub fn generate() -> Result<Self, PushError> {
        Ed25519KeyPair::generate().map(Self).map_err(|_| PushError::SigningKey)
    }

    /// What the launchers get to know.
    pub fn public_key(&self) -> Result<PublicKey, PushError> {
        self.0.public_key().as_ref().try_into().map(PublicKey).map_err(|_| PushError::PublicKey)
    }
}

/// The launcher's half: in hexadecimal in `QUORATE_TICKET_KEY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey([u8; ED25519_PUBLIC_KEY_LEN]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl FromStr for PublicKey {
    type Err = PushError;

    fn from_str(text: &str) -> Result<Self, PushError> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| PushError::PublicKey)?;
        bytes.try_into().map(Self).map_err(|_| PushError::PublicKey)
    }
}

/// A ticket for one pod, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PushedTicket {
    /// The UID of the pod that it is for.
    pub pod: PodUid,
    /// The ticket's text, to the byte as the annotation has it.
    pub ticket: String,
    /// Ed25519 over the pod's UID, a line feed and the text, in hexadecimal.
    pub signature: String,
}

/// Signs a ticket's text for one pod.
pub fn sign(key: &SigningKey, pod: &PodUid, ticket: &str) -> PushedTicket {
    let signature = HEXLOWER.encode(key.0.sign(&signed(pod, ticket)).as_ref());
    PushedTicket { pod: pod.clone(), ticket: ticket.to_owned(), signature }
}

impl PushedTicket {
    /// Demands that the key's owner signed this text for this pod.
    pub fn verify(&self, key: &PublicKey, pod: &PodUid) -> Result<(), PushError> {
        if self.pod != *pod {
            return Err(PushError::OtherPod);
        }
        let signature = HEXLOWER_PERMISSIVE.decode(self.signature.as_bytes()).map_err(|_| PushError::Form)?;
        UnparsedPublicKey::new(&ED25519, &key.0)
            .verify(&signed(pod, &self.ticket), &signature)
            .map_err(|_| PushError::Signature)
    }
}

fn signed(pod: &PodUid, ticket: &str) -> Vec<u8> {
    [pod.as_str().as_bytes(), b"\n", ticket.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod() -> PodUid {
        "pod-1".into()
    }

    #[test]
    fn a_signed_ticket_is_verified_by_its_key_for_its_pod_only() {
        let key = SigningKey::generate().unwrap();
        let public = key.public_key().unwrap();
        let pushed = sign(&key, &pod(), "{}");
        pushed.verify(&public, &pod()).unwrap();
        assert_eq!(pushed.verify(&public, &"pod-2".into()), Err(PushError::OtherPod));
        // The same signature under another pod's name.
        let renamed = PushedTicket { pod: "pod-2".into(), ..pushed.clone() };
        assert_eq!(renamed.verify(&public, &"pod-2".into()), Err(PushError::Signature));
        let altered = PushedTicket { ticket: "{ }".into(), ..pushed.clone() };
        assert_eq!(altered.verify(&public, &pod()), Err(PushError::Signature));
        let other = SigningKey::generate().unwrap().public_key().unwrap();
        assert_eq!(pushed.verify(&other, &pod()), Err(PushError::Signature));
        let no_hex = PushedTicket { signature: "xx".into(), ..pushed.clone() };
        assert_eq!(no_hex.verify(&public, &pod()), Err(PushError::Form));
        let short = PushedTicket { signature: "00".into(), ..pushed };
        assert_eq!(short.verify(&public, &pod()), Err(PushError::Signature));
    }

    #[test]
    fn its_json_is_the_agreed_one() {
        let pushed = PushedTicket { pod: pod(), ticket: "{\"a\":1}".into(), signature: "00".into() };
        let text = r#"{"pod":"pod-1","ticket":"{\"a\":1}","signature":"00"}"#;
        assert_eq!(serde_json::to_string(&pushed).unwrap(), text);
        assert_eq!(serde_json::from_str::<PushedTicket>(text).unwrap(), pushed);
    }

    #[test]
    fn keys_survive_their_written_form_and_others_are_refused() {
        let key = SigningKey::generate().unwrap();
        let public = key.public_key().unwrap();
        assert_eq!(public.to_string().parse(), Ok(public.clone()));
        sign(&key, &pod(), "x").verify(&public, &pod()).unwrap();
        for odd in ["", "00", "zz", &"0".repeat(63), &"00".repeat(33)] {
            assert_eq!(odd.parse::<PublicKey>(), Err(PushError::PublicKey), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn no_changed_byte_of_text_or_signature_passes(at: prop::sample::Index, to in 0_u8..128) {
            let key = SigningKey::generate().unwrap();
            let pushed = sign(&key, &pod(), "{\"start\":\"create\"}");
            let length = pushed.ticket.len();
            let mut bytes = [pushed.ticket.as_bytes(), pushed.signature.as_bytes()].concat();
            let at = at.index(bytes.len());
            prop_assume!(!bytes[at].eq_ignore_ascii_case(&to));
            bytes[at] = to;
            let (ticket, signature) = bytes.split_at(length);
            let changed = PushedTicket {
                pod: pod(),
                ticket: String::from_utf8(ticket.to_vec()).unwrap(),
                signature: String::from_utf8(signature.to_vec()).unwrap(),
            };
            prop_assert!(changed.verify(&key.public_key().unwrap(), &pod()).is_err());
        }
    }
}
