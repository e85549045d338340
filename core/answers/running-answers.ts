import type { AnswerControls } from '../contracts/engines.ts'
import type { Model } from '../contracts/models.ts'
import { OpenMap } from '../system/open-tables.ts'

/** The answers in progress by their public ids, so that clients can control them. */
export class RunningAnswers {
  readonly #answers = new OpenMap<
    string,
    { owner: string; key: string; isControllable: boolean; controls: AnswerControls[] }
  >()

  /** Registers an answer. Call `end` once it is over. @param isControllable whether the request asks for that */
  begin(id: string, owner: string, { key }: Pick<Model, 'key'>, isControllable: boolean) {
    const controls: AnswerControls[] = []
    this.#answers.set(id, { owner, key, isControllable, controls })
    return {
      ...(isControllable && { controlled: (own: AnswerControls) => void controls.push(own) }),
      end: () => void this.#answers.delete(id)
    }
  }

  /** Ends the reasoning of an answer. Answers of other owners are treated as if they did not exist. */
  async endThought(
    { id, owner, model }: { id: string; owner: string; model: Pick<Model, 'key'> },
    signal: AbortSignal
  ): Promise<{ success: boolean; message?: string }> {
    const answer = this.#answers.get(id)
    const isMeant = answer?.owner === owner && answer.key === model.key
    if (isMeant && !answer.isControllable) {
      return { success: false, message: 'reasoning control not enabled for this completion' }
    }
    // Answers that have not started and engines without controls have none.
    const controls = isMeant ? answer.controls : []
    if (controls.length === 0) return { success: false, message: 'no active completion for this id' }
    // Controls fail if their engine was replaced. Each choice may have its own controls.
    const results = await Promise.allSettled(controls.map(one => one.endThought({ signal })))
    const replies = results.flatMap(result => (result.status === 'fulfilled' ? [result.value] : []))
    const reply = replies.find(({ success }) => success) ?? replies[0]
    if (reply) return reply
    throw (results[0] as PromiseRejectedResult).reason
  }
}
