/*
 * Keeps the built page in the browser, so that it opens while the server is away. It handles only the page itself and
 * its files: it never sees a stream or a download, and never stores a reply of the API.
 */

/** From the build: names of the files to store, names of the files that the page loads first, and a digest of this version. */
declare const FILES: readonly string[]
declare const START: readonly string[]
declare const VERSION: string

interface WorkerEvent extends Event {
  waitUntil(work: Promise<unknown>): void
  request: Request
  respondWith(reply: Promise<Response>): void
}

const { registration } = globalThis as unknown as { registration: ServiceWorkerRegistration }
const page = registration.scope
const folder = new URL('./', location.href).href
/** Several pages may share an origin. */
const prefix = `corral ${page} `
const own = async () => (await caches.keys()).filter(name => name.startsWith(prefix))

/** How long the page waits for the server before it opens without it, in milliseconds. */
const PATIENCE = 4000

async function keep(): Promise<void> {
  const cache = await caches.open(prefix + VERSION)
  try {
    await cache.addAll(FILES.map(name => folder + name))
    const reply = await fetch(page, { headers: { accept: 'text/html' }, cache: 'no-cache' })
    const html = await reply.clone().text()
    // The server may have been updated since it sent this script. The browser will fetch its next one.
    const isSame = reply.ok && !reply.redirected && START.every(name => html.includes(name))
    if (!isSame) throw new Error('The page has another version.')
    await cache.put(page, reply)
  } catch (error) {
    await caches.delete(prefix + VERSION)
    throw error
  }
}

async function forget(isUnwanted: (name: string) => boolean): Promise<void> {
  for (const name of await own()) if (isUnwanted(name)) await caches.delete(name)
}

/** The newest page that was stored completely. */
async function stored(): Promise<Response | undefined> {
  for (const name of (await own()).reverse()) {
    const found = await (await caches.open(name)).match(page, { ignoreVary: true })
    if (found) return found
  }
  return undefined
}

/** Opens the page from the server, or the stored one if the server does not answer in time. */
async function open(request: Request): Promise<Response> {
  const reply = fetch(request)
  const late = new Promise<undefined>(resolve => setTimeout(resolve, PATIENCE))
  const first = await Promise.race([reply, late]).catch(() => undefined)
  if (first && first.status < 500) return first
  return (await stored()) ?? reply
}

/** Removes everything if the server no longer has this script: another version, or its admin has turned it off. */
async function leave(): Promise<void> {
  const reply = await fetch(location.href, { cache: 'no-store' })
  if (reply.status !== 404) return
  await registration.unregister()
  await forget(() => true)
}

const on = (name: string, handle: (event: WorkerEvent) => void) =>
  addEventListener(name, event => handle(event as WorkerEvent))

on('install', event => event.waitUntil(keep()))
// The browser activates it when no tab uses the previous version. Until then the files of that version are needed.
on('activate', event => event.waitUntil(forget(name => name !== prefix + VERSION)))
on('fetch', event => {
  const { request } = event
  const address = request.url.replace(/[?#].*/, '')
  if (request.method !== 'GET' || request.headers.has('range')) return
  if (request.mode === 'navigate' && address === page) {
    event.respondWith(open(request))
    event.waitUntil(leave().catch(() => undefined))
  } else if (address.startsWith(folder) && /-[A-Z0-9]{8}\.(js|css)$/.test(address)) {
    // Their names contain a digest, so any version's file will do.
    event.respondWith(caches.match(address, { ignoreVary: true }).then(found => found ?? fetch(request)))
  }
})
