/* The chats in the pictures of the page, in the page's export format. */

/** The model shown as the author of the answers. */
export const PICTURE_MODEL = 'Qwen/Qwen3-1.7B-GGUF'

const FIBONACCI = `Use **fast doubling**: two identities lead from $F(n)$ and $F(n+1)$ straight to twice as far.

$$F(2n) = F(n)\\,\\bigl(2F(n+1) - F(n)\\bigr) \\qquad F(2n+1) = F(n)^2 + F(n+1)^2$$

\`\`\`python
def fibonacci(n: int) -> tuple[int, int]:
    """F(n) and F(n + 1), by fast doubling."""
    if n == 0:
        return 0, 1
    a, b = fibonacci(n // 2)
    c, d = a * (2 * b - a), a * a + b * b
    return (d, c + d) if n % 2 else (c, d)
\`\`\`

Each call halves \`n\`, so there are only about $\\log_2 n$ of them:

| way | steps for $n = 1{,}000{,}000$ |
|---|---:|
| adding one after the other | 1,000,000 |
| fast doubling | 20 |
`

interface Turn {
  question: string
  answer: string
  timing?: object
}

/** Chats, newest first. */
const CHATS: { title: string; pinned?: boolean; turns: Turn[] }[] = [
  {
    title: 'Meals for the week',
    pinned: true,
    turns: [{ question: 'Plan our dinners.', answer: 'Gladly. For how many?' }]
  },
  {
    title: 'Fast Fibonacci',
    turns: [
      {
        question: 'How do I compute very large Fibonacci numbers quickly?',
        answer: FIBONACCI,
        timing: { promptTokens: 24, cachedTokens: 0, answerTokens: 312, firstText: 210, speed: 41.6, promptSpeed: 318 }
      }
    ]
  },
  { title: 'A long weekend in Lisbon', turns: [{ question: 'What should we see?', answer: 'Alfama, early.' }] },
  { title: 'Rename files in a shell loop', turns: [{ question: 'How?', answer: 'With `for` and `mv`.' }] },
  { title: 'Customers without orders in SQL', turns: [{ question: 'How?', answer: 'With a left join.' }] },
  { title: 'What TLS does, for a talk', turns: [{ question: 'Explain it.', answer: 'Two keys, one secret.' }] },
  { title: 'Letter to the landlord', turns: [{ question: 'Write it.', answer: 'Dear Ms Holm,' }] }
]

/** @param now epoch milliseconds of the newest chat */
export function pictureChats(now: number): object {
  const chats: object[] = []
  const messages: object[] = []
  for (const [number, { title, pinned = false, turns }] of CHATS.entries()) {
    const chat = `picture-${number}`
    let at = now - (number + 1) * 3_600_000
    let parent: string | undefined
    for (const { question, answer, timing } of turns) {
      const id = `${chat}-${messages.length}`
      messages.push({ id, chat, role: 'user', content: question, at: at++, ...(parent !== undefined && { parent }) })
      parent = `${id}-answer`
      messages.push({
        ...{ id: parent, chat, parent: id, role: 'assistant', content: answer, at: at++, model: PICTURE_MODEL },
        ...{ finish: 'stop', timing }
      })
    }
    chats.push({ id: chat, title, pinned, createdAt: at, updatedAt: at, leaf: parent, model: PICTURE_MODEL })
  }
  return { corral: 'chats', version: 1, chats, messages }
}
