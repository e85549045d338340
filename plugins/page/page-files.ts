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
  // The only script URL that the page creates is that of the PDF worker.
  'trusted-types corral-worker'
].join('; ')
/** The policy of the page's files. A worker uses the policy of its own file. */
const FILE_POLICY = "default-src 'none'; script-src 'self'"
/**
 * The policies for code of answers that the page shows in a frame: it has an origin of its own, runs, and reaches
 * nothing, neither this server nor others. The page's own policy keeps the frame from navigating to other hosts, and
 * `Connection-Allowlist` closes what content security policies leave open, such as WebRTC and DNS requests.
 */
const PREVIEW_HEADERS = {
  'content-security-policy': [
    'sandbox allow-scripts',
    "default-src 'none'",
    "script-src 'unsafe-inline'",
    "style-src 'unsafe-inline'",
    'img-src data: blob:',
    'font-src data:',
    'media-src data: blob:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'self'"
  ].join('; '),
  'connection-allowlist': '()',
  'x-dns-prefetch-control': 'off',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin'
}

const TYPES: Record<string, string> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
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
    this.#html = html.replaceAll('{base}', base).replaceAll('{files}', path)
  }

  /** Sends the page, which browsers always revalidate. @param conversations where the page stores them */
  sendPage(reply: FastifyReply, conversations: 'browser' | 'server'): FastifyReply {
    reply.type('text/html; charset=utf-8').headers({
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'permissions-policy': 'camera=(), geolocation=(), microphone=(self)',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      'cache-control': 'no-cache'
    })
    const encoding = encodingFor(reply)
    const html = this.#html.replace('{conversations}', conversations)
    return reply.send(encoding ? encoding.compress(html) : html)
  }

  /** Returns the web app manifest, with which browsers install the page. @param page the page, relative to it */
  manifest(page: string): object {
    const icons = [{ src: this.#icon, sizes: 'any', type: 'image/svg+xml' }]
    const colours = { background_color: '#fbfaf8', theme_color: '#fbfaf8' }
    return { name: 'corral', id: page, start_url: page, scope: page, display: 'standalone', ...colours, icons }
  }

  /** Sends a file of the page, which browsers cache for ever. @throws CorralError `route_not_found` */
  async sendFile(name: string, reply: FastifyReply): Promise<FastifyReply> {
    if (!this.#names.has(name)) {
      throw new CorralError('route_not_found', 'The page no longer has this file. Reload the page.')
    }
    const encoding = encodingFor(reply)?.name
    const type = name.slice(name.lastIndexOf('.') + 1)
    reply.type(TYPES[type]!).headers({
      'content-security-policy': FILE_POLICY,
      'x-content-type-options': 'nosniff',
      'cache-control': 'public, max-age=31536000, immutable',
      ...(type === 'html' && PREVIEW_HEADERS)
    })
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
