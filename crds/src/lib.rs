//! The API types of Quorate and their validation.
