import { constants, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createSecureContext, type SecureContext } from 'node:tls'
import type { FastifyBaseLogger } from 'fastify'
import { ConfigError } from '../config/config-error.ts'
import { errorMessage, isSystemError } from '../errors.ts'
import { parseDuration } from '../system/duration.ts'
import { plural } from '../system/plural.ts'

/** Files of the certificate, and how often they are checked. */
export interface CertificateOptions {
  certificate: string
  key: string
  check_interval: string | number
}

const DAY = 24 * 3_600_000
/** Milliseconds before its expiry at which warnings begin. */
const WARNING_PERIOD_MS = 14 * DAY

/** The files' content. */
interface Loaded {
  context: SecureContext
  /** The texts of both files, to detect changes. */
  text: string
  ends: number
}

/**
 * The server's certificate with its key. Their files are polled, because tools that renew them may replace the files, a
 * link to them, or their folder (certbot, Kubernetes), and file watchers miss some of that. A pair that cannot be used
 * is logged, and the previous one stays.
 */
export class ServerCertificate {
  readonly #options: CertificateOptions
  readonly #log: FastifyBaseLogger
  readonly #timer: NodeJS.Timeout
  #current: Loaded
  /** The texts of the last refused pair, so that it is logged once. */
  #refused: string | undefined
  #warned = Number.NEGATIVE_INFINITY

  /** @throws ConfigError if the files cannot be used */
  constructor(options: CertificateOptions, log: FastifyBaseLogger) {
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

  get context(): SecureContext {
    return this.#current.context
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

/** @throws Error if the certificate and the key cannot be read, or do not belong together */
function load(text: string): Loaded {
  const [cert = '', key = ''] = text.split('\0')
  // Handshakes cost a server much more than its client, so each connection has only one.
  const secureOptions = constants.SSL_OP_NO_RENEGOTIATION
  const context = createSecureContext({ cert, key, minVersion: 'TLSv1.2', secureOptions })
  const first = new X509Certificate(cert)
  return { context, text, ends: Date.parse(first.validTo) }
}
