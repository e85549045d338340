import { messageOf } from '../../../core/errors.ts'

const WORDS: Record<string, (host: string) => string> = {
  ENOTFOUND: host => `the name "${host}" is not known; is it spelled right, and is this machine online?`,
  EAI_AGAIN: host => `the name "${host}" could not be looked up; is this machine online?`,
  ECONNREFUSED: host => `nothing listens at ${host}`,
  ECONNRESET: host => `${host} broke off the connection`,
  EPIPE: host => `${host} broke off the connection`,
  UND_ERR_SOCKET: host => `${host} broke off the connection`,
  HPE_INVALID_CONSTANT: host => `${host} does not speak HTTP`,
  ETIMEDOUT: host => `no connection to ${host} in time`,
  UND_ERR_CONNECT_TIMEOUT: host => `no connection to ${host} in time`,
  UND_ERR_HEADERS_TIMEOUT: host => `${host} did not answer in time`,
  UND_ERR_BODY_TIMEOUT: host => `${host} stopped in the middle of its answer`,
  EHOSTUNREACH: host => `there is no way to ${host} from this network`,
  ENETUNREACH: host => `there is no way to ${host} from this network`,
  EPROTO: host => `${host} does not speak TLS as it should; is the address rather http://?`,
  ERR_SSL_WRONG_VERSION_NUMBER: host => `${host} does not speak TLS; is the address rather http://?`,
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
  // What broke a connection stands in the cause of undici's own error.
  return error.cause instanceof Error ? (errorCode(error.cause) ?? code) : code
}

/**
 * Why a server could not be talked to, for people, without a full stop.
 * @param host with its port where it has one
 */
export function connectionWords(error: unknown, host: string): string {
  const code = errorCode(error)
  if (code !== undefined && UNTRUSTED.has(code)) {
    return `the certificate of ${host} is not trusted; where a company signs its own, name its file in NODE_EXTRA_CA_CERTS`
  }
  const words = code === undefined ? undefined : WORDS[code]
  if (words) return words(host)
  const message = messageOf(error) || code || 'the connection failed'
  if (/proxy response/i.test(message)) return `the proxy refuses the way to ${host} (${message})`
  return `${host}: ${message.replace(/\.$/, '')}`
}
