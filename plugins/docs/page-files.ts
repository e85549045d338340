import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/** The page itself, which is the same whether a key is needed or not. */
export interface Page {
  html: string
  /** Its `Content-Security-Policy`. */
  policy: string
}

function hashOf(html: string, element: 'script' | 'style'): string {
  const text = new RegExp(`<${element}>(.*?)</${element}>`, 's').exec(html)![1]!
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`
}

/** Reads the page. Its policy lets it run its own script and what that fetches from this server, and nothing else. */
export async function readPage(): Promise<Page> {
  const html = await readFile(join(packageRoot, 'plugins', 'docs', 'page', 'index.html'), 'utf8')
  const policy = [
    "default-src 'none'",
    `script-src ${hashOf(html, 'script')} blob:`,
    `style-src ${hashOf(html, 'style')} blob:`,
    'img-src data:',
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'"
  ].join('; ')
  return { html, policy }
}

/** A file of Swagger UI's. */
export async function readAsset(name: string): Promise<Buffer> {
  return await readFile(createRequire(import.meta.url).resolve(`@fastify/swagger-ui/static/${name}`))
}
