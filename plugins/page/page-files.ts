import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompressSync, brotliDecompress, gzip, gzipSync } from 'node:zlib'
import type { FastifyReply } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { packageRoot } from '../../core/system/package-info.ts'

/** Content security policy: the page loads only files of this server, and cannot turn text into code or HTML. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  'media-src blob:',
  "worker-src 'self'",
  "manifest-src 'self'",
  "connect-src 'self'",
  "frame-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  // The only script URLs that the page creates are those of its workers.
  'trusted-types corral-worker'
].join('; ')
/** The policy of the page's files. A worker uses the policy of its own file. */
const FILE_POLICY = "default-src 'none'; script-src 'self'"
/** The worker that keeps the page requests its files from this server. */
const WORKER = 'service-worker.js'
const WORKER_POLICY = "default-src 'none'; connect-src 'self'"
/**
 * The policies for code of answers that the page shows in a frame: it has an origin of its own, runs, and reaches
 * nothing, neither this server nor others. The page's own policy keeps the frame from navigating to other hosts, and
 * `Connection-Allowlist` closes what content security policies leave open, such as WebRTC and DNS requests.
 */
const PREVIEW_HEADERS = {
  'content-security-policy':
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
    "img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
  'connection-allowlist': '()',
  'x-dns-prefetch-control': 'off',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin'
}

const TYPES: Record<string, string> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  png: 'image/png',
  html: 'text/html; charset=utf-8'
}

/** Compressions for browsers, smallest first. Files are stored in the first one. */
const ENCODINGS = [
  { name: 'br', compress: brotliCompressSync },
  { name: 'gzip', compress: gzipSync }
] as const

const folder = join(packageRoot, 'dist', 'plugins', 'page', 'browser')

/** The page and its files as `scripts/build-page.mjs` builds them: compressed, and with hashes in their names. */
export class PageFiles {
  readonly #html: string
  readonly #path: string
  readonly #icon: string
  readonly #names: ReadonlySet<string>

  /**
   * @param base path of the server's API relative to the page, such as `./`
   * @param path prefix of the page's files relative to the page, such as `page/`
   * @throws Error if the page was not built
   */
  constructor(base: string, path: string) {
    this.#names = new Set(JSON.parse(readFileSync(join(folder, 'files.json'), 'utf8')))
    const html = readFileSync(join(folder, 'index.html'), 'utf8')
    this.#icon = /rel="icon" href="([^"]+)"/.exec(html)![1]!
    this.#path = path
    this.#html = html.replaceAll('{base}', base).replaceAll('{files}', path)
  }

  /**
   * Sends the page, which browsers always revalidate.
   * @param conversations where the page stores them
   * @param offline whether browsers keep the page, to open it while the server is away
   */
  sendPage(reply: FastifyReply, conversations: 'browser' | 'server', offline: boolean): FastifyReply {
    reply.type('text/html; charset=utf-8').headers({
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'permissions-policy': 'camera=(), geolocation=(), microphone=(self)',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      'cache-control': 'no-cache'
    })
    const encoding = encodingFor(reply)
    const worker = offline ? this.#path + WORKER : ''
    const html = this.#html.replace('{conversations}', conversations).replace('{worker}', worker)
    return reply.send(encoding ? encoding.compress(html) : html)
  }

  /** Returns the web app manifest, with which browsers install the page. @param page the page, relative to it */
  manifest(page: string): object {
    const pictures = [...this.#names].flatMap(src => {
      const [, purpose, size] = /^(any|maskable)-(\d+)-/.exec(src) ?? []
      return size ? [{ src, sizes: `${size}x${size}`, type: 'image/png', purpose }] : []
    })
    const icons = [{ src: this.#icon, sizes: 'any', type: 'image/svg+xml' }, ...pictures]
    const colours = { background_color: '#fbfaf8', theme_color: '#fbfaf8' }
    return { name: 'corral', id: page, start_url: page, scope: page, display: 'standalone', ...colours, icons }
  }

  /**
   * Sends the worker that keeps the page. Browsers that get a 404 instead remove what they keep.
   * @param page the page, relative to the worker
   */
  sendWorker(page: string, reply: FastifyReply): Promise<FastifyReply> {
    reply.headers({
      'content-security-policy': WORKER_POLICY,
      'cache-control': 'no-cache',
      'service-worker-allowed': page
    })
    return this.#send(WORKER, reply)
  }

  /** Sends a file of the page, which browsers cache for ever. @throws CorralError `route_not_found` */
  sendFile(name: string, reply: FastifyReply): Promise<FastifyReply> {
    if (!this.#names.has(name)) {
      throw new CorralError('route_not_found', 'The page no longer has this file. Reload the page.')
    }
    reply.headers({
      'content-security-policy': FILE_POLICY,
      'cache-control': 'public, max-age=31536000, immutable',
      ...(name.endsWith('.html') && PREVIEW_HEADERS)
    })
    return this.#send(name, reply)
  }

  async #send(name: string, reply: FastifyReply): Promise<FastifyReply> {
    const encoding = encodingFor(reply)?.name
    reply.type(TYPES[name.slice(name.lastIndexOf('.') + 1)]!).header('x-content-type-options', 'nosniff')
    const packed = await readFile(join(folder, `${name}.br`))
    if (encoding === 'br') return reply.send(packed)
    const plain = await promisify(brotliDecompress)(packed)
    return reply.send(encoding ? await promisify(gzip)(plain) : plain)
  }
}

/** Chooses the compression of a reply and sets its headers. */
function encodingFor(reply: FastifyReply): (typeof ENCODINGS)[number] | undefined {
  const accepted = String(reply.request.headers['accept-encoding'] ?? '')
  // A client that excludes an encoding with `q=0` gets the file uncompressed.
  const encoding = accepted.includes('q=0') ? undefined : ENCODINGS.find(({ name }) => accepted.includes(name))
  reply.vary('Accept-Encoding')
  if (encoding) reply.header('content-encoding', encoding.name)
  return encoding
}
