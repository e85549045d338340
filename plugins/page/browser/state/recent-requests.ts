import { signal } from '@preact/signals'
import { tabTexts } from './browser-storage.ts'

/** A request of this browser, with where its time went. All times in ms. */
export interface RecentRequest {
  /** Epoch milliseconds. */
  at: number
  /** Such as `POST /api/chat`. */
  route: string
  model?: string
  status: number | string
  /** Until the first byte of the body. */
  firstByte?: number
  /** Waiting for the model to load, or for a slot, as the server says it. */
  load?: number
  /** Reading the prompt. */
  prompt?: number
  /** Generating the answer. */
  generation?: number
  total: number
  tokens?: number
}

/** Requests that are kept. */
const MAX_COUNT = 50
const STORED = 'corral-requests'

/** The last requests for models, the newest first; kept until the tab is closed. */
export const recentRequests = signal(tabTexts.getJson<readonly RecentRequest[]>(STORED, []))

/** Notes a request that has ended. */
export function noteRequest(request: RecentRequest): void {
  recentRequests.value = [request, ...recentRequests.peek()].slice(0, MAX_COUNT)
  tabTexts.set(STORED, JSON.stringify(recentRequests.peek()))
}
