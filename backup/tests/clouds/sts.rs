//! What Amazon's STS answers who shows it a pod's token for keys of a role (IRSA), as much as the library asks for. Whose token it
//! is and whom the role trusts is for the server to say.

use std::collections::BTreeMap;

use http::request::Parts;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use url::form_urlencoded;

use super::answers::{Answer, with_status};

pub const ROLE: &str = "arn:aws:iam::111122223333:role/backups";
/// What the pods call what they do in that role.
pub const SESSION: &str = "nightly";

/// The store's own keys, and how long they are said to last. They are none of a session, which versitygw would not know.
pub struct Keys {
    pub access: &'static str,
    pub secret: &'static str,
    pub lasting: SignedDuration,
}

/// What is held against a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// It is none of the cluster's, not meant for STS, or its time is over.
    Invalid,
    /// The role does not trust whose it is.
    Distrusted,
}

/// Keys of [`ROLE`], unless something is held against the request or its token.
pub fn answer(head: &Parts, keys: &Keys, judge: impl Fn(&str) -> Result<(), Objection>) -> Answer {
    let asked = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned();
    let asked: BTreeMap<String, String> = asked.collect();
    let is = |name: &str, value: &str| asked.get(name).is_some_and(|asked| asked == value);
    let action = is("Action", "AssumeRoleWithWebIdentity") && is("Version", "2011-06-15");
    if head.method != Method::POST || !action || !is("RoleSessionName", SESSION) {
        return refusal(StatusCode::BAD_REQUEST, "InvalidAction", "Could not find operation");
    }
    let judged = match asked.get("WebIdentityToken") {
        Some(_) if !is("RoleArn", ROLE) => Err(Objection::Distrusted),
        Some(token) => judge(token),
        None => Err(Objection::Invalid),
    };
    match judged {
        Ok(()) => granted(keys),
        Err(Objection::Invalid) => {
            let words = "The ID Token provided is not a valid JWT";
            refusal(StatusCode::BAD_REQUEST, "InvalidIdentityToken", words)
        }
        Err(Objection::Distrusted) => {
            let words = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
            refusal(StatusCode::FORBIDDEN, "AccessDenied", words)
        }
    }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Answer {
    let document = format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{code}</Code>\
         <Message>{message}</Message></Error><RequestId>c0ffee</RequestId></ErrorResponse>"
    );
    with_status(status, document)
}

fn granted(Keys { access, secret, lasting }: &Keys) -> Answer {
    let expiration = Timestamp::now() + *lasting;
    let document = format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult><SubjectFromWebIdentityToken>system:serviceaccount:ns:backup\
         </SubjectFromWebIdentityToken><AssumedRoleUser><Arn>{ROLE}/{SESSION}</Arn></AssumedRoleUser><Credentials>\
         <AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken></SessionToken>\
         <Expiration>{expiration}</Expiration></Credentials></AssumeRoleWithWebIdentityResult><ResponseMetadata>\
         <RequestId>c0ffee</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>"
    );
    with_status(StatusCode::OK, document)
}
