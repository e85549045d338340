import type { AnswerControls } from '../contracts/engines.ts'
import type { Model } from '../contracts/models.ts'
import { OpenMap } from '../system/open-tables.ts'

interface Running {
  owner: string
  /** The model's. */
  key: string
  isControllable: boolean
  controls: AnswerControls[]
}

/** The answers that are being generated, by the ids that their clients know, so that these can control them. */
export class RunningAnswers {
  readonly #answers = new OpenMap<string, Running>()

  /**
   * An answer for the owner of a request begins. Call `end` once it is over.
   * @param isControllable whether the request asks for that
   */
  begin(id: string, owner: string, { key }: Pick<Model, 'key'>, isControllable: boolean) {
    const controls: AnswerControls[] = []
    this.#answers.set(id, { owner, key, isControllable, controls })
    return {
      ...(isControllable && { controlled: (own: AnswerControls) => void controls.push(own) }),
      end: () => void this.#answers.delete(id)
    }
  }

  /**
   * Ends the thoughts of an answer. One of somebody else counts as one that there is not.
   * @param model the one that answers
   */
  async endThought(
    { id, owner, model }: { id: string; owner: string; model: Pick<Model, 'key'> },
    signal: AbortSignal
  ): Promise<{ success: boolean; message?: string }> {
    const answer = this.#answers.get(id)
    const isMeant = answer?.owner === owner && answer.key === model.key
    if (isMeant && !answer.isControllable) {
      return { success: false, message: 'reasoning control not enabled for this completion' }
    }
    // What has not begun, and what an engine answers that cannot be controlled, has none.
    const controls = isMeant ? answer.controls : []
    if (controls.length === 0) return { success: false, message: 'no active completion for this id' }
    // An engine that was replaced before anything came fails; each choice may have controls of its own.
    const results = await Promise.allSettled(controls.map(one => one.endThought({ signal })))
    const replies = results.flatMap(result => (result.status === 'fulfilled' ? [result.value] : []))
    const reply = replies.find(({ success }) => success) ?? replies[0]
    if (reply) return reply
    throw (results[0] as PromiseRejectedResult).reason
  }
}
