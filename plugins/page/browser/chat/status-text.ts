import { fill, texts } from '../texts/texts.ts'

/** Translates the server's progress reports for an answer or a load, if they are known. */
export function statusText(status = ''): string {
  const t = texts.value
  const percent = /(\d+)%/.exec(status)?.[0]
  if (status === '') return t.waitingStatus
  if (status === 'reconnecting') return t.reconnecting
  if (status.startsWith('prompt') && percent) return fill(t.promptStatus, { percent })
  if (/^loading/.test(status)) return fill(t.loadingStatus, { percent: percent ?? '' })
  if (/^(queued|waiting for a slot)/.test(status)) return t.queueStatus
  return status
}
