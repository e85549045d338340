interface TrustedTypes {
  createPolicy(name: string, rules: Rules): Rules
}
interface Rules {
  createScriptURL(name: string): string
}

/** Returns the address of a worker that the page names. */
const createScriptURL = (name: string) =>
  new URL(document.querySelector<HTMLMetaElement>(`meta[name=corral-${name}]`)!.content, document.baseURI).href

/** With trusted types, browsers start workers only from the URLs of a policy. */
const policy: Rules = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes?.createPolicy('corral-worker', {
  createScriptURL
}) ?? { createScriptURL }

export const startWorker = (name: 'pdf-worker' | 'image-worker') =>
  new Worker(policy.createScriptURL(name), { type: 'module' })

/** Lets the browser keep the page, to open it while the server is away. Browsers offer that only to secure contexts. */
export async function keepPage(): Promise<void> {
  if (!navigator.serviceWorker || !document.querySelector('meta[name=corral-service-worker][content$=js]')) return
  await navigator.serviceWorker.register(policy.createScriptURL('service-worker'), { scope: location.pathname })
}
