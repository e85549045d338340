import { type ApiError, ask, useKey } from './api.ts'

/** Exchanges the link that opened the page for a session. @returns why that failed, or an empty text */
export async function redeemLink(): Promise<string> {
  const token = /^#open=(.+)$/.exec(location.hash)?.[1]
  if (token === undefined) return ''
  // It works only once and must not stay in the history.
  history.replaceState(null, '', '#/')
  dispatchEvent(new HashChangeEvent('hashchange'))
  try {
    const { key } = await ask<{ key: string }>('POST', 'api/sessions', { body: { token: decodeURIComponent(token) } })
    useKey(key)
    return ''
  } catch (error) {
    return (error as ApiError).message
  }
}

/** Ends the session of this tab, or removes its key. */
export async function signOut(): Promise<void> {
  await ask('DELETE', 'api/sessions/current').catch(() => undefined)
  useKey('')
}
