//! A login: the request that gives a user's token.

use ipam_kit::{ErrorCode, Result};
use ipam_servers::{Client, HttpRequest, LoginAnswer, Method, ServerLogin, media};
use serde::Deserialize;
use serde_json::json;

use crate::answers::nonsense;

#[derive(Deserialize)]
struct TokenJson {
    token: String,
}

/// Asks for the token of a user. OpenWISP takes 20 logins a day from an address.
///
/// # Errors
/// The server cannot be reached, or is not OpenWISP.
pub(crate) fn log_in(client: &mut Client, login: &ServerLogin) -> Result<LoginAnswer> {
    let body = json!({"username": login.user, "password": login.password.expose()}).to_string();
    let answer = client.read(&HttpRequest {
        body: body.as_bytes(),
        media: Some(media::JSON),
        ok_statuses: &[200, 400, 429],
        limit: 16 * 1024,
        ..HttpRequest::new(Method::Post, "api/v1/users/token/")
    })?;
    if answer.status == 200 {
        // The words of the parser may quote the token.
        return serde_json::from_slice(&answer.body)
            .map(|TokenJson { token }| LoginAnswer::Token(token))
            .map_err(|_| nonsense("cannot parse the answer to a login".to_owned()));
    }
    let (code, advice) = match answer.status {
        429 => (
            ErrorCode::TRY_AGAIN,
            "raise OPENWISP_USERS_AUTH_THROTTLE_RATE in OpenWISP's settings: it allows 20 logins a day from one address by default; or set a token in ipam.openwisp instead of username and password",
        ),
        _ => (
            ErrorCode::BACKEND,
            "correct username and password in ipam.openwisp, or set a token instead",
        ),
    };
    let said = format!("HTTP {}: {}", answer.status, client.secrets().shown(&answer.body));
    Ok(LoginAnswer::Refused { code, said, advice })
}
