import { useEffect, useState } from 'preact/hooks'
import { findInMessages, sortedChats } from '../state/chats.ts'
import type { Chat } from '../state/conversation-tree.ts'

/** Messages are searched after this many milliseconds without a key press. */
const DELAY = 200

/** The chats whose title or messages contain the words. Titles match immediately, messages a moment later. */
export function useFoundChats(wanted: string): Chat[] {
  const words = wanted.toLowerCase().trim()
  const [inTexts, setInTexts] = useState<ReadonlySet<string>>(new Set())
  useEffect(() => {
    setInTexts(new Set())
    if (words.length < 2) return
    let isGone = false
    const timer = setTimeout(async () => {
      const found = await findInMessages(words)
      if (!isGone) setInTexts(found)
    }, DELAY)
    return () => {
      isGone = true
      clearTimeout(timer)
    }
  }, [words])
  return sortedChats.value.filter(({ id, title }) => title.toLowerCase().includes(words) || inTexts.has(id))
}
