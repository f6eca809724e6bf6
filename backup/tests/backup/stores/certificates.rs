//! What an authority does that signs a server's certificate: as much of X.509 (RFC 5280) as a server on this machine needs.
//! Nothing of this is in the product.

use std::net::Ipv4Addr;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

use crate::clouds::pem;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// An address in a list of names.
const IP: u8 = 0x87;
/// What a certificate has under the numbers 0 and 3.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

const TRUE: [u8; 1] = [0xff];
const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: [u8; 3] = [0x55, 0x1d, 0x13];
const BEGIN: &str = "200101000000Z";
const END: &str = "491231235959Z";

/// An authority with a key of its own.
pub struct Authority {
    name: &'static str,
    key: EcdsaKeyPair,
}

/// A server's certificate and its key, in PEM.
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &'static str) -> Self {
        Self { name, key: key() }
    }

    /// What those have who trust it, in PEM.
    pub fn certificate(&self) -> String {
        let is_authority = tagged(SEQUENCE, &[tagged(BOOLEAN, &[TRUE])]);
        let critical = tagged(BOOLEAN, &[TRUE]);
        let extension = [tagged(OBJECT, &[BASIC_CONSTRAINTS]), critical, tagged(OCTET_STRING, &[is_authority])];
        self.sign(self.name, &self.key, &tagged(SEQUENCE, &extension))
    }

    /// Signs a certificate for a server at this address.
    pub fn signs(&self, address: Ipv4Addr) -> Leaf {
        let key = key();
        let names = tagged(SEQUENCE, &[tagged(IP, &[address.octets()])]);
        let extension = [tagged(OBJECT, &[ALTERNATIVE_NAMES]), tagged(OCTET_STRING, &[names])];
        let certificate = self.sign("server", &key, &tagged(SEQUENCE, &extension));
        Leaf { certificate, key: pem("PRIVATE KEY", key.to_pkcs8v1().unwrap().as_ref()) }
    }

    fn sign(&self, subject: &str, key: &EcdsaKeyPair, extension: &[u8]) -> String {
        let algorithm = tagged(SEQUENCE, &[tagged(OBJECT, &[ECDSA_WITH_SHA256])]);
        let public = key.public_key().as_der().unwrap();
        let said = tagged(
            SEQUENCE,
            &[
                // The third version, which is numbered from zero, and a serial number.
                tagged(VERSION, &[tagged(INTEGER, &[[2_u8]])]),
                tagged(INTEGER, &[[1_u8]]),
                algorithm.clone(),
                name(self.name),
                tagged(SEQUENCE, &[tagged(TIME, &[BEGIN]), tagged(TIME, &[END])]),
                name(subject),
                <[u8]>::to_vec(public.as_ref()),
                tagged(EXTENSIONS, &[tagged(SEQUENCE, &[extension])]),
            ],
        );
        let signature = self.key.sign(&SystemRandom::new(), &said).unwrap();
        // No bit of its last byte is left out.
        let bits = [&[0_u8][..], signature.as_ref()].concat();
        pem("CERTIFICATE", &tagged(SEQUENCE, &[said, algorithm, tagged(BIT_STRING, &[bits])]))
    }
}

fn key() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap()
}

fn name(text: &str) -> Vec<u8> {
    let common = tagged(SEQUENCE, &[tagged(OBJECT, &[COMMON_NAME]), tagged(UTF8, &[text])]);
    tagged(SEQUENCE, &[tagged(SET, &[common])])
}

/// These parts as one value of DER, whose length takes as few bytes as it can.
fn tagged(tag: u8, parts: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.as_ref().len()).sum();
    let [.., high, low] = length.to_be_bytes();
    let mut value = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    for part in parts {
        value.extend_from_slice(part.as_ref());
    }
    value
}
