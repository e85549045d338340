import { signal } from '@preact/signals'
import { tabTexts } from './browser-storage.ts'

/** A request of this browser and the durations of its phases, in ms. */
export interface RecentRequest {
  /** Epoch milliseconds. */
  at: number
  /** Such as `POST /api/chat`. */
  route: string
  model?: string | undefined
  status: number | string
  /** Until the first byte of the body. */
  firstByte?: number | undefined
  /** Waiting for the model to load or for a slot, as reported by the server. */
  load?: number | undefined
  prompt?: number | undefined
  generation?: number | undefined
  total: number
  tokens?: number | undefined
}

const MAX_COUNT = 50
const STORED = 'corral-requests'

/** The last requests to models, newest first. Kept until the tab is closed. */
export const recentRequests = signal(tabTexts.getJson<readonly RecentRequest[]>(STORED, []))

export function noteRequest(request: RecentRequest): void {
  recentRequests.value = [request, ...recentRequests.peek()].slice(0, MAX_COUNT)
  tabTexts.set(STORED, JSON.stringify(recentRequests.peek()))
}
