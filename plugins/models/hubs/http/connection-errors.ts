import { errorMessage } from '../../../../core/errors.ts'

const closed = (host: string) => `${host} closed the connection`
const noRoute = (host: string) => `there is no route to ${host} from this network`
const tooSlow = (host: string) => `no connection to ${host} within the time limit`
const EXPLANATIONS: Record<string, (host: string) => string> = {
  ENOTFOUND: host => `the name "${host}" is unknown; is it spelled correctly, and is this machine online?`,
  EAI_AGAIN: host => `the name "${host}" could not be looked up; is this machine online?`,
  ECONNREFUSED: host => `nothing listens at ${host}`,
  ECONNRESET: closed,
  EPIPE: closed,
  UND_ERR_SOCKET: closed,
  HPE_INVALID_CONSTANT: host => `${host} does not speak HTTP`,
  ETIMEDOUT: tooSlow,
  UND_ERR_CONNECT_TIMEOUT: tooSlow,
  UND_ERR_HEADERS_TIMEOUT: host => `${host} did not answer in time`,
  UND_ERR_BODY_TIMEOUT: host => `${host} stopped in the middle of its response`,
  EHOSTUNREACH: noRoute,
  ENETUNREACH: noRoute,
  EPROTO: host => `${host} failed to set up TLS; did you mean http://?`,
  ERR_SSL_WRONG_VERSION_NUMBER: host => `${host} does not speak TLS; did you mean http://?`,
  CERT_HAS_EXPIRED: host => `the certificate of ${host} has expired`,
  ERR_TLS_CERT_ALTNAME_INVALID: host => `the certificate of ${host} is for another name`
}
const UNTRUSTED = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE'
])

function errorCode(error: unknown): string | undefined {
  if (error instanceof AggregateError) return error.errors.map(errorCode).find(code => code !== undefined)
  if (!(error instanceof Error)) return undefined
  const code = 'code' in error ? String(error.code) : undefined
  // undici wraps the socket's error.
  return error.cause instanceof Error ? (errorCode(error.cause) ?? code) : code
}

/** Explains why a request to a server failed, without a full stop. @param host with its port, if any */
export function connectionErrorText(error: unknown, host: string): string {
  const code = errorCode(error)
  if (code !== undefined && UNTRUSTED.has(code)) {
    return `the certificate of ${host} is not trusted; if your company signs its own certificates, set NODE_EXTRA_CA_CERTS to its file`
  }
  const explain = code === undefined ? undefined : EXPLANATIONS[code]
  if (explain) return explain(host)
  const message = errorMessage(error) || code || 'the connection failed'
  if (/proxy response/i.test(message)) {
    const login = "requires a user name and a password (407), which HTTPS_PROXY or the hub's proxy setting can hold"
    return `the proxy refuses to connect to ${host}${message.includes('407') ? `: it ${login}` : ` (${message})`}`
  }
  return `${host}: ${message.replace(/\.$/, '')}`
}
