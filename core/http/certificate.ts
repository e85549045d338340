import { constants, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { createSecureContext, type SecureContext, TLSSocket, type TLSSocketOptions } from 'node:tls'
import type { FastifyBaseLogger } from 'fastify'
import { ConfigError } from '../config/config-error.ts'
import type { CoreConfig } from '../config/core-schema.ts'
import { errorMessage, isSystemError } from '../errors.ts'
import { parseDuration } from '../system/duration.ts'
import { plural } from '../system/plural.ts'
import { refusalText } from './unreadable-request.ts'

const DAY = 24 * 3_600_000
/** Milliseconds before its expiry at which warnings begin. */
const WARNING_PERIOD_MS = 14 * DAY
/** Milliseconds that a client has for the TLS handshake. */
const HANDSHAKE_LIMIT = 10_000
/** The first byte of a TLS connection. An HTTP request begins with a letter. */
const HANDSHAKE_RECORD = 22

const PLAIN_HTTP = refusalText(
  '400 Bad Request',
  'invalid_request',
  'This server uses TLS, and the request came without it. Use an address that begins with https://'
)

/**
 * The server's certificate with its key. Their files are polled, because tools that renew them may replace the files, a
 * link to them, or their folder (certbot, Kubernetes), and file watchers miss some of that. A pair that cannot be used
 * is logged, and the previous one stays.
 */
export class ServerCertificate {
  readonly #options: CoreConfig['tls']
  readonly #log: FastifyBaseLogger
  readonly #timer: NodeJS.Timeout
  #current: ReturnType<typeof load>
  /** The texts of the last refused pair, so that it is logged once. */
  #refused: string | undefined
  #warned = Number.NEGATIVE_INFINITY

  /** @throws ConfigError if the files cannot be used */
  constructor(options: CoreConfig['tls'], log: FastifyBaseLogger) {
    this.#options = options
    this.#log = log
    const { certificate, key } = options
    try {
      this.#current = load(this.#read())
    } catch (error) {
      const missing = certificate === '' ? 'tls.certificate' : key === '' ? 'tls.key' : undefined
      const message = missing
        ? `It is missing: a certificate (tls.certificate) and its key (tls.key) go together, and only ${certificate || key} is set.`
        : isSystemError(error, 'ENOENT')
          ? `There is no file ${error.path}. Correct tls.certificate and tls.key, or leave both empty for plain HTTP.`
          : `The certificate ${certificate} with the key ${key} cannot be used (${errorMessage(error)}). Both are files in PEM format; the certificate's file also has those of its issuers.`
      const setting = missing ?? 'tls.certificate'
      throw new ConfigError([{ where: setting, setting, message }])
    }
    this.#warn()
    this.#timer = setInterval(() => this.check(), parseDuration(options.check_interval)!).unref()
  }

  check(): void {
    let text: string | undefined
    try {
      text = this.#read()
      if (text === this.#current.text) {
        this.#refused = undefined
      } else if (text !== this.#refused) {
        this.#current = load(text)
        this.#refused = undefined
        this.#warned = Number.NEGATIVE_INFINITY
        const until = new Date(this.#current.ends).toISOString()
        this.#log.info({ until }, `The certificate ${this.#options.certificate} was replaced; new connections get it.`)
      }
    } catch (error) {
      const what = text ?? errorMessage(error)
      if (what !== this.#refused) {
        this.#refused = what
        const { certificate, key } = this.#options
        this.#log.error(
          `The new certificate ${certificate} with the key ${key} cannot be used (${errorMessage(error)}); the previous one stays.`
        )
      }
    }
    this.#warn()
  }

  close(): void {
    clearInterval(this.#timer)
  }

  /**
   * Encrypts the connection of a client. Disconnects a client that is too slow or does not speak TLS, and explains the
   * problem if it sent a plain HTTP request.
   * @param ready gets the encrypted connection after the handshake
   */
  encrypt(raw: Socket, ready: (socket: TLSSocket) => void): void {
    encryptConnection(raw, () => ({ secureContext: this.#current.context }), ready)
  }

  #read(): string {
    const { certificate, key } = this.#options
    return `${readFileSync(certificate, 'utf8')}\0${readFileSync(key, 'utf8')}`
  }

  /** Once a day while it expires soon. */
  #warn(): void {
    const now = Date.now()
    const moment = performance.now()
    const { ends } = this.#current
    if (ends - now > WARNING_PERIOD_MS || moment - this.#warned < DAY) return
    this.#warned = moment
    const { certificate } = this.#options
    const until = new Date(ends).toISOString()
    if (ends <= now) {
      this.#log.error({ until }, `The certificate ${certificate} has expired: clients refuse it. Renew it.`)
    } else {
      const days = Math.ceil((ends - now) / DAY)
      this.#log.warn(
        { until },
        `The certificate ${certificate} expires in ${plural(days, 'day')}. Renew it: new connections use the new one without a restart.`
      )
    }
  }
}

/** Like `ServerCertificate.encrypt`. @param options called when the client begins the handshake */
export function encryptConnection(raw: Socket, options: () => TLSSocketOptions, ready: (socket: TLSSocket) => void) {
  const limit = setTimeout(() => raw.destroy(), HANDSHAKE_LIMIT)
  const end = () => clearTimeout(limit)
  raw.once('close', end)
  raw.on('error', () => {
    // The connection was closed, which "close" reports.
  })
  raw.once('readable', (): unknown => {
    const begin: Buffer | null = raw.read()
    if (!begin) return raw.destroy()
    if (begin[0] !== HANDSHAKE_RECORD) return raw.resume().end(PLAIN_HTTP)
    raw.unshift(begin)
    const socket = new TLSSocket(raw, { ...options(), isServer: true, ALPNProtocols: ['http/1.1'] })
    const failed = () => raw.destroy()
    socket.once('error', failed)
    socket.once('secure', () => {
      end()
      socket.off('error', failed)
      ready(socket)
    })
  })
}

/** Parses both files; the text is kept to detect changes. @throws Error if they are unreadable or do not match */
function load(text: string) {
  const [cert = '', key = ''] = text.split('\0')
  return { context: serverContext(cert, key), text, ends: Date.parse(new X509Certificate(cert).validTo) }
}

/** @throws Error if the certificate and the key, both in PEM, do not match */
export function serverContext(cert: string, key: string): SecureContext {
  // Handshakes cost a server much more than its client, so each connection has only one.
  const secureOptions = constants.SSL_OP_NO_RENEGOTIATION
  // Without a context, OpenSSL refuses to resume sessions of clients with a certificate.
  return createSecureContext({ cert, key, minVersion: 'TLSv1.2', secureOptions, sessionIdContext: 'corral' })
}
