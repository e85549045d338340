import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompressSync, gunzip, gzipSync } from 'node:zlib'
import type { FastifyReply } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { packageRoot } from '../../core/system/package-info.ts'

/** What the page may do: run and show what comes from this server, and turn no text into code or HTML. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  'media-src blob:',
  "worker-src 'self'",
  "connect-src 'self'",
  "frame-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  // The page makes one address of a script: that of the worker that reads PDFs.
  'trusted-types corral-worker'
].join('; ')
/** What a worker may do, which has the policy of its own file: run. */
const FILE_POLICY = "default-src 'none'; script-src 'self'"

const TYPES: Record<string, string> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml'
}

const GZIP = { name: 'gzip', end: '.gz', compress: gzipSync }
/** How files were compressed when the page was built, the smallest first, and the ends of their names. */
const ENCODINGS = [{ name: 'br', end: '.br', compress: brotliCompressSync }, GZIP]

const folder = join(packageRoot, 'dist', 'plugins', 'page', 'browser')

/** The page and its files, as `scripts/build-page.mjs` has left them: names with hashes, each compressed once, and only so. */
export class PageFiles {
  readonly #html: string
  readonly #names: ReadonlySet<string>

  private constructor(html: string, names: ReadonlySet<string>) {
    this.#html = html
    this.#names = names
  }

  /**
   * @param base where the server's own addresses begin, seen from the page, such as `./`
   * @param path what the addresses of the page's files begin with, seen from the page, such as `page/`
   * @throws Error where the page was not built
   */
  static async read(base: string, path: string): Promise<PageFiles> {
    const names: string[] = JSON.parse(await readFile(join(folder, 'files.json'), 'utf8'))
    const html = await readFile(join(folder, 'index.html'), 'utf8')
    return new PageFiles(html.replaceAll('{base}', base).replaceAll('{files}', path), new Set(names))
  }

  /** Sends the page itself, which browsers ask for anew each time. @param conversations where it keeps them */
  sendPage(reply: FastifyReply, conversations: 'browser' | 'server'): FastifyReply {
    reply.type('text/html; charset=utf-8').headers({
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      'cache-control': 'no-cache'
    })
    const encoding = encodingFor(reply)
    const html = this.#html.replace('{conversations}', conversations)
    return reply.send(encoding ? encoding.compress(html) : html)
  }

  /**
   * Sends a file of the page, which browsers keep: its name has a hash of what is in it.
   * @throws CorralError `route_not_found`
   */
  async sendFile(name: string, reply: FastifyReply): Promise<FastifyReply> {
    if (!this.#names.has(name)) {
      throw new CorralError('route_not_found', 'The page has no such file any more. Load the page again.')
    }
    const encoding = encodingFor(reply)
    const packed = await readFile(join(folder, name + (encoding ?? GZIP).end))
    const body = encoding ? packed : await promisify(gunzip)(packed)
    return reply
      .type(TYPES[name.slice(name.lastIndexOf('.') + 1)]!)
      .headers({
        'content-security-policy': FILE_POLICY,
        'x-content-type-options': 'nosniff',
        'cache-control': 'public, max-age=31536000, immutable'
      })
      .send(body)
  }
}

/** Chooses how a reply is compressed, and says so in its headers. */
function encodingFor(reply: FastifyReply): (typeof ENCODINGS)[number] | undefined {
  const accepted = String(reply.request.headers['accept-encoding'] ?? '')
  // A client that rules one out with `q=0` gets what is not compressed.
  const encoding = accepted.includes('q=0') ? undefined : ENCODINGS.find(({ name }) => accepted.includes(name))
  reply.vary('Accept-Encoding')
  if (encoding) reply.header('content-encoding', encoding.name)
  return encoding
}
