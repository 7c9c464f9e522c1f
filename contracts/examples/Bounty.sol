// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {ITraining} from "../solidity/ITraining.sol";

/// @title Money for one worker's update of one round, held by nobody until the round has settled.
/// @notice A sponsor offers; when the round is FINAL with the worker's update accepted, anybody may have the worker
/// paid. When the round has settled otherwise, or is not settled at the deadline, the sponsor has the money back.
/// A round leaves the state some rounds after it has settled (RoundArchived). Then this contract sees it no more: the
/// worker is paid by the round's record and its proof, which any node that kept them hands out
/// (archipelago_archivedRound), and who has not claimed at the deadline leaves the money to the sponsor.
contract Bounty {
    struct Offer {
        address sponsor;
        address worker;
        uint64 run;
        uint64 round;
        uint64 deadline;
        uint256 amount;
    }

    event Offered(uint256 indexed offer, address indexed worker, uint64 run, uint64 round, uint256 amount);
    event Paid(uint256 indexed offer, address indexed worker, uint256 amount);
    event Refunded(uint256 indexed offer, address indexed sponsor, uint256 amount);

    error NothingOffered();
    error UnknownRun(uint64 run);
    error DeadlinePassed(uint64 deadline, uint256 height);
    error UnknownOffer(uint256 offer);
    error NotEarned(uint256 offer);
    error RoundLeft(uint64 run, uint64 round);
    error NotLost(uint256 offer, uint64 deadline, uint256 height);
    error TransferFailed(address to, uint256 amount);

    ITraining internal constant TRAINING = ITraining(address(0x1000));
    uint8 internal constant FINAL = 5;
    uint8 internal constant VOID = 6;
    uint8 internal constant ACCEPTED = 2;

    Offer[] private _offers;

    /// @notice Offer the money that comes with the call, until the deadline, a block height.
    function offer(uint64 run, uint64 round, address worker, uint64 deadline) external payable returns (uint256 id) {
        if (msg.value == 0) revert NothingOffered();
        if (deadline <= block.number) revert DeadlinePassed(deadline, block.number);
        if (TRAINING.run(run).owner == address(0)) revert UnknownRun(run);
        id = _offers.length;
        _offers.push(Offer(msg.sender, worker, run, round, deadline, msg.value));
        emit Offered(id, worker, run, round, msg.value);
    }

    /// @notice Pay the worker what it has earned; anybody may call. RoundLeft: use claimArchived.
    function claim(uint256 id) external {
        Offer memory found = _open(id);
        (, bool isAccepted) = _outcome(found);
        if (!isAccepted && _hasLeft(found)) revert RoundLeft(found.run, found.round);
        if (!isAccepted) revert NotEarned(id);
        _pay(id, found);
    }

    /// @notice The same for a round that has left the state: its record and path, from archipelago_archivedRound.
    function claimArchived(uint256 id, bytes calldata record, bytes32[] calldata siblings) external {
        Offer memory found = _open(id);
        (ITraining.RoundInfo memory info, ITraining.Update[] memory updates) =
            TRAINING.archivedRound(found.run, found.round, record, siblings);
        if (info.state == FINAL) {
            for (uint256 i = 0; i < updates.length; i++) {
                if (updates[i].member == found.worker && updates[i].fate == ACCEPTED) return _pay(id, found);
            }
        }
        revert NotEarned(id);
    }

    /// @notice Give the money back when it can't be earned any more, or isn't at the deadline; anybody may call.
    function refund(uint256 id) external {
        Offer memory found = _open(id);
        (bool isSettled, bool isAccepted) = _outcome(found);
        if (isAccepted || !(isSettled || block.number > found.deadline)) {
            revert NotLost(id, found.deadline, block.number);
        }
        delete _offers[id];
        emit Refunded(id, found.sponsor, found.amount);
        _send(found.sponsor, found.amount);
    }

    /// @notice Whether the round is FINAL with the worker's update accepted; false once the round has left the state.
    function isEarned(uint256 id) public view returns (bool isAccepted) {
        (, isAccepted) = _outcome(_open(id));
    }

    /// @notice An offer that is neither paid nor refunded; its amount is 0 otherwise.
    function offers(uint256 id) external view returns (Offer memory) {
        return _offers[id];
    }

    function numOffers() external view returns (uint256) {
        return _offers.length;
    }

    function _open(uint256 id) private view returns (Offer memory found) {
        if (id >= _offers.length || _offers[id].amount == 0) revert UnknownOffer(id);
        return _offers[id];
    }

    function _hasLeft(Offer memory found) private view returns (bool) {
        (uint64 numArchived,,) = TRAINING.archive(found.run);
        return found.round < numArchived;
    }

    /// A round that was not opened yet, or has left the state, makes Training revert: it is not settled for us.
    function _outcome(Offer memory found) private view returns (bool isSettled, bool isAccepted) {
        try TRAINING.round(found.run, found.round) returns (ITraining.RoundInfo memory info) {
            if (info.state == VOID) return (true, false);
            if (info.state != FINAL) return (false, false);
        } catch {
            return (false, false);
        }
        try TRAINING.update(found.run, found.round, found.worker) returns (ITraining.Update memory update) {
            return (true, update.fate == ACCEPTED);
        } catch {
            return (true, false);
        }
    }

    function _pay(uint256 id, Offer memory found) private {
        delete _offers[id];
        emit Paid(id, found.worker, found.amount);
        _send(found.worker, found.amount);
    }

    function _send(address to, uint256 amount) private {
        (bool isDone,) = to.call{value: amount}("");
        if (!isDone) revert TransferFailed(to, amount);
    }
}
